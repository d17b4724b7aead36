# The virtual GPU: kernels are ordinary C++.
find_package(Eigen3 3.3 NO_MODULE QUIET)
if(NOT Eigen3_FOUND)
  message(FATAL_ERROR "The virtual GPU needs Eigen 3.3 or newer (Debian: libeigen3-dev), and building for a GPU needs nvcc.")
endif()
set(KERNEL_OPTIONS -xc++)
if(ENCORE_SANITIZE MATCHES "thread")  # its tests compute little, and the optimizer takes a third of the compiler's time
  list(APPEND KERNEL_OPTIONS -O0)
endif()
set_source_files_properties(${KERNEL_SOURCES} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "${KERNEL_OPTIONS}")
target_compile_definitions(encore_rooms PUBLIC ENCORE_VIRTUAL)
target_link_libraries(encore_rooms PRIVATE Eigen3::Eigen)
if(ENCORE_SANITIZE)
  target_compile_options(encore_rooms PUBLIC -fsanitize=${ENCORE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1)
  target_link_options(encore_rooms PUBLIC -fsanitize=${ENCORE_SANITIZE})
  if(ENCORE_SANITIZE MATCHES "address")  # which sees what these see, and they cost a third of the compiler's time
    target_compile_options(encore_rooms PUBLIC -fno-sanitize=null,object-size,vptr,pointer-overflow,nonnull-attribute)
    # A trap and not a call, which takes a fifth of the compiler's time; ASan tells its file and line.
    target_compile_options(encore_rooms PUBLIC -fsanitize-undefined-trap-on-error)
  endif()
endif()
