# The real GPU: kernels by nvcc, the static CUDA runtime, everything else opened when first needed.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has C++20
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
target_include_directories(encore_rooms PUBLIC ${CUDAToolkit_INCLUDE_DIRS})
target_compile_definitions(encore_rooms PUBLIC ENCORE_CUDA)
# What there is PTX of, which newer GPUs can use: "90" is machine code and PTX, "90-real" machine code alone.
set(ptx "${CMAKE_CUDA_ARCHITECTURES}")
list(FILTER ptx INCLUDE REGEX "^[0-9]+(-virtual)?$")
list(TRANSFORM ptx REPLACE "^([0-9]+).*$" "\\10")
list(JOIN ptx "," ptx)
set_property(SOURCE src/device/cuda/device.cu PROPERTY COMPILE_DEFINITIONS "ENCORE_PTX=${ptx}")
if(CMAKE_CUDA_ARCHITECTURES MATCHES "(^|;)90")
  set_property(SOURCE src/ops/matmul/warpgroup_gemm.cu PROPERTY COMPILE_OPTIONS --generate-code=arch=compute_90a,code=[sm_90a])
  set_property(SOURCE src/device/cuda/tensor_map.cc PROPERTY COMPILE_DEFINITIONS ENCORE_WARPGROUPS)
endif()
target_compile_options(encore_rooms PUBLIC
  "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;--extended-lambda;--compress-mode=size;-Xcompiler=-fvisibility=hidden;-Xcompiler=-Wall;-diag-suppress=20012,177>")
target_link_libraries(encore_rooms PUBLIC CUDA::cudart_static)
include(${CMAKE_CURRENT_LIST_DIR}/cudnn_frontend.cmake)
