# encore_ort_abi: the typed header of ONNX Runtime's C ABI, made from the tables in abi/.
#
# With ENCORE_OFFICIAL_ORT_INCLUDE set to a folder that holds onnxruntime_c_api.h, the build also compiles
# abi/check_official.cc: static_asserts that the tables and those headers agree.
set(ENCORE_OFFICIAL_ORT_INCLUDE "" CACHE PATH "Folder of the official onnxruntime_c_api.h to check the tables with")

find_package(Python3 REQUIRED COMPONENTS Interpreter)

set(ort_abi_source_dir "${CMAKE_CURRENT_LIST_DIR}/../abi")
set(ort_abi_generated_dir "${CMAKE_BINARY_DIR}/generated")
# At configure time: every target may include the header, and none has to depend on a rule that makes it.
execute_process(
  COMMAND "${Python3_EXECUTABLE}" "${ort_abi_source_dir}/generate.py" "${ort_abi_generated_dir}/ort_abi.h"
          --check "${ort_abi_generated_dir}/ort_abi_check.inc"
  RESULT_VARIABLE ort_abi_result
  ERROR_VARIABLE ort_abi_error)
if(NOT ort_abi_result EQUAL 0)
  message(FATAL_ERROR "ort_abi.h was not made:\n${ort_abi_error}")
endif()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
  "${ort_abi_source_dir}/generate.py" "${ort_abi_source_dir}/slots.tsv"
  "${ort_abi_source_dir}/enums.tsv" "${ort_abi_source_dir}/typedefs.tsv")

add_library(encore_ort_abi INTERFACE)
target_include_directories(encore_ort_abi INTERFACE "${ort_abi_generated_dir}")
target_compile_features(encore_ort_abi INTERFACE cxx_std_20)

if(ENCORE_OFFICIAL_ORT_INCLUDE)
  if(NOT EXISTS "${ENCORE_OFFICIAL_ORT_INCLUDE}/onnxruntime_c_api.h")
    message(FATAL_ERROR "ENCORE_OFFICIAL_ORT_INCLUDE=${ENCORE_OFFICIAL_ORT_INCLUDE} holds no onnxruntime_c_api.h")
  endif()
  add_library(encore_ort_abi_check OBJECT "${ort_abi_source_dir}/check_official.cc")
  target_include_directories(encore_ort_abi_check SYSTEM PRIVATE "${ENCORE_OFFICIAL_ORT_INCLUDE}")
  target_link_libraries(encore_ort_abi_check PRIVATE encore_ort_abi)
endif()
