# nvcc reads headers for three seconds before it comes to a source, g++ for one, and for ten those of cudnn-frontend; so
# sources are compiled together, as many as take half a minute. What they define for themselves must not have the same
# names. By itself a source that is edited is compiled again sooner.
option(ENCORE_BUNDLES "Compile sources together" ON)

# Has TARGET compile these sources in one unit of that name.
function(bundle target unit)
  set(unit "${CMAKE_CURRENT_BINARY_DIR}/bundles/${unit}")
  cmake_path(GET unit PARENT_PATH folder)
  set(text "")
  foreach(source ${ARGN})
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY "${folder}")  # alike in every checkout, for ccache
    string(APPEND text "#include \"${source}\"\n")
  endforeach()
  file(CONFIGURE OUTPUT "${unit}" CONTENT "${text}" @ONLY)
  list(GET ARGN 0 first)
  foreach(property COMPILE_OPTIONS LANGUAGE)
    get_source_file_property(value "${first}" ${property})
    if(value)
      set_source_files_properties("${unit}" PROPERTIES ${property} "${value}")
    endif()
  endforeach()
  target_sources(${target} PRIVATE "${unit}")
  set_source_files_properties(${ARGN} PROPERTIES HEADER_FILE_ONLY ON)
endfunction()

# Of src/FOLDER; without a suffix they are .cu.
function(bundle_rooms folder)
  list(TRANSFORM ARGN APPEND ".cu" REGEX "^[^.]+$")
  list(GET ARGN 0 first)
  cmake_path(GET first FILENAME first)
  list(TRANSFORM ARGN PREPEND "${CMAKE_SOURCE_DIR}/src/${folder}/")
  foreach(source ${ARGN})
    if(NOT source IN_LIST KERNEL_SOURCES AND NOT source IN_LIST BACKEND_SOURCES AND NOT source IN_LIST ROOM_SOURCES)
      message(FATAL_ERROR "cmake/bundles.cmake names ${source}, which is not there")
    endif()
  endforeach()
  bundle(encore_rooms "${folder}/${first}" ${ARGN})
endfunction()

function(bundle_host_rooms folder)
  list(TRANSFORM ARGN APPEND ".cc")
  bundle_rooms(${folder} ${ARGN})
endfunction()

if(ENCORE_BUNDLES)
  # Those of nvcc come first, so that short ones are left for the end.
  bundle_rooms(ops/norm channels_last_group_norm group_norm)
  bundle_rooms(ops/norm hardmax softmax softmax_long_middle softmax_middle softmax_short)
  bundle_rooms(ops/norm embed_layer_norm few_row_norm gated_rms_norm loss lp_norm unaligned_norm viewed_l2_norm)
  bundle_rooms(ops/reduce product sum)
  bundle_rooms(ops/reduce arg length)
  bundle_rooms(ops/reduce all_finite extreme scan)
  bundle_rooms(ops/elementwise comparison variadic)
  bundle_rooms(ops/elementwise arithmetic bits)
  bundle_rooms(ops/elementwise cast division)
  bundle_rooms(ops/elementwise gelu math pow trigonometry where)
  bundle_rooms(ops/elementwise activation bias_and_gate clamped_gate clip complex gate program)
  bundle_rooms(ops/nn channels_last_depthwise depthwise_packs)
  bundle_rooms(ops/nn affine_grid batch_norm batch_statistics bias_dropout causal_conv convolve dropout im2col
    squeeze_excite)
  bundle_rooms(ops/nn deform_conv epilogue grid_sample image_scaler lrn max_unpool non_max_suppression resize_antialias
    roi)
  bundle_rooms(ops/nn hyper_connections interpolate pool resize)
  bundle_rooms(ops/attention/dense attend_decode attend_grouped_decode attend_quantized_cache)
  bundle_rooms(ops/attention/sparse attend_block_sparse attend_topk)
  bundle_rooms(ops/attention/paged attend_paged attend_paged_float8 attend_paged_int4 attend_paged_int8)
  bundle_rooms(ops/attention/paged attend_paged_latent attend_paged_selected extend_paged_cache)
  bundle_rooms(ops/attention dense/attend_prefill linear/linear_state operators/ordered_attention)
  bundle_rooms(ops/attention dense/attend_beams dense/attend_dnn dense/attend_int8 dense/attend_short dense/attend_tf32
    dense/decode_step dense/split_k operators/decoder_attention operators/relative_position)
  bundle_rooms(ops/attention inputs/heads inputs/last_keys inputs/padding inputs/rotate_heads kv_cache/extend_cache
    kv_cache/quantize_cache_rows kv_cache/window_cache operators/quantized_attention rotary/viewed_rotation)
  bundle_rooms(ops/attention inputs/key_mask longformer/longformer_attention longformer/longformer_group
    longformer/longformer_tiles rotary/gemma_rotary_embedding rotary/rotary_embedding)
  bundle_rooms(ops/attention longformer/ordered_longformer sparse/indexer_entries sparse/indexer_scores
    sparse/indexer_state)
  bundle_rooms(ops/quantize nbits_gemv nbits_product tile_order)
  bundle_rooms(ops/quantize dequantize gather_block_quantized integer_conv quantize weave)
  bundle_rooms(ops/quantize integer_rows matmul_block_floats matmul_bnb4 nbits_tiles qordered_matmul)
  bundle_rooms(ops/quantize integer_product qlinear_concat qlinear_elementwise qlinear_global_pool qlinear_softmax)
  bundle_rooms(ops matmul/tile_gemm moe/group_router moe/grouped_gemm moe/interleaved nn/convolve_tiles)
  bundle_rooms(ops matmul/contract matmul/det matmul/gemm matmul/gemm_float8 matmul/inverse moe/plain_gemm)
  bundle_rooms(ops/index compress label_encoder padded_indices reverse_sequence sort_rows time_warping topk unique)
  bundle_rooms(ops control/iterations host_values index/gather index/scatter ml/features ml/linear_model ml/svm
    ml/tree_ensemble moe/gemv shape/rolled_copy)
  bundle_rooms(ops moe/route recurrent/gru recurrent/lstm recurrent/recurrence recurrent/rnn recurrent/round_to_bytes
    shape/concat_split shape/diagonal shape/fill shape/interleave shape/pad shape/strided)
  bundle_rooms(ops index/ngram_hash index/prefix_sum index/tf_idf random/draw random/multinomial random/runs
    signal/fourier signal/mel signal/window)
  bundle_rooms(device copy_many fault gemv gemv_tiles)
  if(ENCORE_DEVICE STREQUAL "cuda")
    bundle_rooms(device/cuda dnn_attention.cc dnn_candidates.cc)
    bundle_rooms(device/cuda compiler conditional graph_fills launch sort stopwatch)
  endif()
  bundle_host_rooms(fuse aligned_parts attention bounds channels_last constants control_flow convolutions einsums)
  bundle_host_rooms(fuse batch_norms convex elementwise flat_index gates graph groups if)
  bundle_host_rooms(fuse biases growing iterations joined_resizes last_keys links loop match)
  bundle_host_rooms(fuse flat_gemms layouts movements norms padded_heads padding padding_masks passes)
  bundle_host_rooms(fuse gelu padded_run patches plan plan_reading plan_text product_activations product_norms)
  bundle_host_rooms(fuse group_norms product_sums program projections region_plan regions rotation_pairs row_orders)
  bundle_host_rooms(fuse joined_products row_rules row_rules_of_lookups same_results scan shape_symbols shapes
    shared_masks)
  bundle_host_rooms(fuse known_numbers row_rules_of_math turning variant volume whole whole_gathers window_dims)
  bundle_host_rooms(fuse layer_scales row_rules_of_movement)
  bundle_host_rooms(fuse own_tensor row_rules_of_sequences)
  bundle_host_rooms(plugin factory host/api_version host/code host/memory_kind kernels/computed_constants
    kernels/control_flow kernels/fused_node kernels/kernel_adapter)
  bundle_host_rooms(plugin kernels/kernel_registry kernels/kernel_run kernels/profiled_node model/bodies
    model/few_numbers model/fusion model/graph_reading model/node_info)
  bundle_host_rooms(plugin model/capability model/placement model/plan_files model/signature options/library_settings
    options/option_rows options/options options/run_options)
  bundle_host_rooms(plugin session/allocator session/completion session/constants session/ep session/ep_callbacks
    session/ep_runs session/fault_cells session/host_copies)
  bundle_host_rooms(plugin session/profiler session/report session/stream session/transfer)
endif()
