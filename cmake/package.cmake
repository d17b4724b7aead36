# What is installed: the library, and what find_package(encore) reads, which a build tree has in the same places.
include(CMakePackageConfigHelpers)

set(library "${CMAKE_SHARED_LIBRARY_PREFIX}onnxruntime_providers_cuda_plugin${CMAKE_SHARED_LIBRARY_SUFFIX}")
configure_file(cmake/encore-config.cmake.in "${CMAKE_BINARY_DIR}/cmake/encore-config.cmake" @ONLY)
write_basic_package_version_file("${CMAKE_BINARY_DIR}/cmake/encore-config-version.cmake" COMPATIBILITY SameMinorVersion)

install(TARGETS onnxruntime_providers_cuda_plugin LIBRARY DESTINATION onnxruntime_ep_encore/${ENCORE_DEVICE})
install(FILES "${CMAKE_BINARY_DIR}/cmake/encore-config.cmake" "${CMAKE_BINARY_DIR}/cmake/encore-config-version.cmake"
        DESTINATION onnxruntime_ep_encore/${ENCORE_DEVICE}/cmake)
