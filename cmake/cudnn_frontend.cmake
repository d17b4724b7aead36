# Headers of cudnn-frontend, for src/device/cuda/dnn_frontend.h: from ENCORE_CUDNN_FRONTEND_INCLUDE, else from the Python
# that CMake found if it has this very version, else fetched by pip into the build folder. Later versions open a CUDA
# runtime of their own while they run, and print to stderr when they find two.
set(ENCORE_CUDNN_FRONTEND_VERSION 1.22.1)
set(ENCORE_CUDNN_FRONTEND_INCLUDE "" CACHE PATH "Folder of cudnn_frontend.h (default: found or fetched)")

function(cudnn_frontend_version folder result)
  set(version "")
  if(EXISTS "${folder}/cudnn_frontend_version.h")
    file(STRINGS "${folder}/cudnn_frontend_version.h" lines REGEX "define CUDNN_FRONTEND_(MAJOR|MINOR|PATCH)_VERSION +[0-9]+")
    list(TRANSFORM lines REPLACE "^.* ([0-9]+).*$" "\\1")
    list(JOIN lines "." version)
  endif()
  set(${result} "${version}" PARENT_SCOPE)
endfunction()

set(cudnn_frontend_include "${ENCORE_CUDNN_FRONTEND_INCLUDE}")
if(NOT cudnn_frontend_include)
  execute_process(
    COMMAND "${Python3_EXECUTABLE}" -c "import sys; print(';'.join(path + '/include' for path in sys.path if path))"
    OUTPUT_VARIABLE installed OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(fetched "${CMAKE_BINARY_DIR}/_deps/cudnn_frontend")
  foreach(folder ${installed} "${fetched}/include")
    cudnn_frontend_version("${folder}" version)
    if(version VERSION_EQUAL ENCORE_CUDNN_FRONTEND_VERSION)
      set(cudnn_frontend_include "${folder}")
      break()
    endif()
  endforeach()
  if(NOT cudnn_frontend_include)
    message(STATUS "Fetching nvidia-cudnn-frontend ${ENCORE_CUDNN_FRONTEND_VERSION}")
    execute_process(
      COMMAND "${Python3_EXECUTABLE}" -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target "${fetched}"
              nvidia-cudnn-frontend==${ENCORE_CUDNN_FRONTEND_VERSION}
      RESULT_VARIABLE failed ERROR_VARIABLE words)
    if(failed)
      message(FATAL_ERROR "cudnn-frontend's headers are missing and pip could not fetch them; install "
        "nvidia-cudnn-frontend==${ENCORE_CUDNN_FRONTEND_VERSION} for ${Python3_EXECUTABLE}, or name the folder of "
        "cudnn_frontend.h in ENCORE_CUDNN_FRONTEND_INCLUDE:\n${words}")
    endif()
    set(cudnn_frontend_include "${fetched}/include")
  endif()
endif()
cudnn_frontend_version("${cudnn_frontend_include}" version)
if(NOT version VERSION_GREATER_EQUAL ENCORE_CUDNN_FRONTEND_VERSION)
  message(FATAL_ERROR "${cudnn_frontend_include} holds cudnn-frontend '${version}'; ${ENCORE_CUDNN_FRONTEND_VERSION} is wanted")
endif()
message(STATUS "cudnn-frontend ${version}: ${cudnn_frontend_include}")
# No kernel needs them, and ccache takes "-isystem=", as nvcc has it, for another compilation in another checkout.
target_include_directories(encore_rooms SYSTEM PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${cudnn_frontend_include}>")
# It only makes plans, which takes cuDNN long, and is much to compile.
set_source_files_properties(
  src/device/cuda/dnn_attention.cc src/device/cuda/dnn_candidates.cc PROPERTIES COMPILE_OPTIONS -O1)
