# The real GPU: kernels by nvcc, the static CUDA runtime, everything else opened when first needed.
target_include_directories(encore_rooms PUBLIC ${CUDAToolkit_INCLUDE_DIRS})
target_compile_definitions(encore_rooms PUBLIC ENCORE_CUDA)
target_compile_options(encore_rooms PRIVATE
  "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;--extended-lambda;-Xcompiler=-fvisibility=hidden;-Xcompiler=-Wall;-diag-suppress=20012,177>")
target_link_libraries(encore_rooms PUBLIC CUDA::cudart_static)
