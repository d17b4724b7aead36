# The virtual GPU: kernels are ordinary C++.
find_package(Eigen3 3.3 REQUIRED NO_MODULE)
set_source_files_properties(${KERNEL_SOURCES} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-xc++")
target_compile_definitions(encore_rooms PUBLIC ENCORE_VIRTUAL)
target_link_libraries(encore_rooms PRIVATE Eigen3::Eigen)
if(ENCORE_SANITIZE)
  target_compile_options(encore_rooms PUBLIC -fsanitize=${ENCORE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1)
  target_link_options(encore_rooms PUBLIC -fsanitize=${ENCORE_SANITIZE})
endif()
