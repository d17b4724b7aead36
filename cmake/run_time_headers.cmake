# The headers that kernels which are compiled at run time may include, inside of the library as text. NVRTC has none of
# the standard's: it finds those of src/device/cuda/nvrtc.
set(run_time_headers "")
foreach(name device/annotate device/divide_small device/fast_math device/half device/pack
             ops/elementwise/compiled_program ops/elementwise/curves ops/elementwise/gelu ops/elementwise/integer_call
             ops/elementwise/program_arguments ops/elementwise/rough ops/elementwise/scalar_calls ops/elementwise/scalar_function
             ops/elementwise/scalar_functions ops/elementwise/truncate)
  list(APPEND run_time_headers "${name}.h=${CMAKE_SOURCE_DIR}/src/${name}.h")
endforeach()
if(ENCORE_DEVICE STREQUAL "cuda")
  foreach(name bit cfloat cmath cstdint cuda_bf16.h cuda_fp16.h limits type_traits)
    list(APPEND run_time_headers "${name}=${CMAKE_SOURCE_DIR}/src/device/cuda/nvrtc/${name}")
  endforeach()
endif()
set(run_time_source "${CMAKE_BINARY_DIR}/generated/run_time_headers.cc")
set(run_time_script "${CMAKE_CURRENT_LIST_DIR}/run_time_headers.py")
set(run_time_files ${run_time_headers})
list(TRANSFORM run_time_files REPLACE "^.*=" "")
add_custom_command(
  OUTPUT "${run_time_source}"
  COMMAND "${Python3_EXECUTABLE}" "${run_time_script}" "${run_time_source}" ${run_time_headers}
  DEPENDS "${run_time_script}" ${run_time_files}
  COMMENT "Keeping headers for run time" VERBATIM)
target_sources(encore_rooms PRIVATE "${run_time_source}")
