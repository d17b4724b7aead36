# Sets CMAKE_CUDA_COMPILER to the nvcc that tools/environment.py finds too: CUDACXX's, or in PATH, CUDA_HOME or
# /usr/local/cuda.
if(NOT CMAKE_CUDA_COMPILER)
  find_program(ENCORE_NVCC NAMES $ENV{CUDACXX} nvcc PATHS "$ENV{CUDA_HOME}/bin" /usr/local/cuda/bin NO_CACHE)
  if(ENCORE_NVCC)
    set(CMAKE_CUDA_COMPILER "${ENCORE_NVCC}")
  endif()
endif()
