# operators.h: the functions in src/ops that return rows of the table of operators, found in the sources.
set(operators_header "${CMAKE_BINARY_DIR}/generated/operators.h")
set(operators_script "${CMAKE_CURRENT_LIST_DIR}/list_operators.py")
set(operators_sources ${ROOM_SOURCES} ${KERNEL_SOURCES})
list(FILTER operators_sources INCLUDE REGEX "src/ops/")
add_custom_command(
  OUTPUT "${operators_header}"
  COMMAND "${Python3_EXECUTABLE}" "${operators_script}" "${operators_header}" "${CMAKE_SOURCE_DIR}/src" ${operators_sources}
  DEPENDS "${operators_script}" ${operators_sources}
  COMMENT "Listing the operators" VERBATIM)
target_sources(encore_rooms PRIVATE "${operators_header}")
target_include_directories(encore_rooms PRIVATE "${CMAKE_BINARY_DIR}/generated")
