# The real GPU: kernels by nvcc, the static CUDA runtime, everything else opened when first needed.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has C++20
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
target_include_directories(encore_rooms PUBLIC ${CUDAToolkit_INCLUDE_DIRS})
target_compile_definitions(encore_rooms PUBLIC ENCORE_CUDA)
target_compile_options(encore_rooms PUBLIC
  "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;--extended-lambda;--compress-mode=size;-Xcompiler=-fvisibility=hidden;-Xcompiler=-Wall;-diag-suppress=20012,177>")
target_link_libraries(encore_rooms PUBLIC CUDA::cudart_static)
# device.cu tells with this which GPUs the library has code for; all, all-major and native stand for a list.
set(architectures "${CMAKE_CUDA_ARCHITECTURES}")
string(MAKE_C_IDENTIFIER "CMAKE_CUDA_ARCHITECTURES_${architectures}" list_of)
string(TOUPPER "${list_of}" list_of)
if(DEFINED ${list_of})
  set(architectures "${${list_of}}")
endif()
list(JOIN architectures "," architectures)
if(NOT "${architectures}," MATCHES "^([1-9][0-9]+[af]?(-real|-virtual)?,)+$")
  message(FATAL_ERROR "CMAKE_CUDA_ARCHITECTURES=${CMAKE_CUDA_ARCHITECTURES} names no architectures, as 90 or 80-real does")
endif()
set_source_files_properties(src/device/cuda/device.cu PROPERTIES COMPILE_DEFINITIONS
  "ENCORE_CUDA_ARCHITECTURES=\"${architectures}\"")
include(${CMAKE_CURRENT_LIST_DIR}/cudnn_frontend.cmake)
