# SPDX-License-Identifier: MIT
# Helpers that give every target the same settings.
include(GNUInstallDirs)
set(TESSERA_WARNINGS -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers)

add_library(tessera_pch OBJECT ${PROJECT_SOURCE_DIR}/cmake/pch.cpp)
target_link_libraries(tessera_pch PUBLIC tessera_torch)
target_compile_options(tessera_pch PRIVATE ${TESSERA_WARNINGS})
target_compile_definitions(tessera_pch PRIVATE OMPI_SKIP_MPICXX)
if(TESSERA_PCH)
  target_precompile_headers(tessera_pch PRIVATE ${PROJECT_SOURCE_DIR}/cmake/pch.h)
  target_compile_options(tessera_pch PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
endif()

function(_tessera_settings name)
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${TESSERA_WARNINGS}>)
  target_compile_definitions(${name} PRIVATE OMPI_SKIP_MPICXX)
  # A program links the functions that it uses, not all of their files.
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-ffunction-sections> $<$<COMPILE_LANGUAGE:CXX>:-fdata-sections>)
  target_link_options(${name} INTERFACE -Wl,--gc-sections)
  if(TESSERA_PCH)
    target_precompile_headers(${name} REUSE_FROM tessera_pch)
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
  endif()
endfunction()

# tessera_openmp(file...): at::parallel_for is a header's loop; without OpenMP's flags it stays on one thread. The library that is linked
# is the one whose threads LibTorch uses.
function(tessera_openmp)
  set_property(SOURCE ${ARGN} APPEND PROPERTY COMPILE_OPTIONS ${OpenMP_CXX_FLAGS})
  set_source_files_properties(${ARGN} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
endfunction()

# _tessera_linked(targets variable): these targets; with TESSERA_WHEEL libtessera.so in place of the libraries that are in it.
function(_tessera_linked targets variable)
  set(linked ${targets})
  if(TESSERA_WHEEL)
    get_property(parts GLOBAL PROPERTY TESSERA_PARTS)
    set(linked "")
    foreach(target ${targets})
      if(target IN_LIST parts)
        set(target tessera_shared)
      endif()
      list(APPEND linked ${target})
    endforeach()
    list(REMOVE_DUPLICATES linked)
  endif()
  set(${variable} ${linked} PARENT_SCOPE)
endfunction()

# tessera_library(name SOURCES a.cpp ... LINK targets...): a static library of the project.
function(tessera_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;LINK;PRIVATE_LINK" ${ARGN})
  add_library(${name} STATIC ${arg_SOURCES})
  string(REGEX REPLACE "^tessera_" "" part ${name})
  add_library(tessera::${part} ALIAS ${name})
  set_target_properties(${name} PROPERTIES EXPORT_NAME ${part})
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  if(folder MATCHES "^(lib|backends)" AND NOT folder MATCHES "^lib/(compare|report|tools)")
    set_property(GLOBAL APPEND PROPERTY TESSERA_PARTS ${name})
  elseif(NOT folder MATCHES "^lib/report")  # which starts without LibTorch
    _tessera_linked("${arg_LINK}" arg_LINK)
  endif()
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                            $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
                                     PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PUBLIC tessera_torch ${arg_LINK} PRIVATE ${arg_PRIVATE_LINK})
  _tessera_settings(${name})
  if(TESSERA_UNITY AND folder MATCHES "^(lib|backends)")
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 6)
    # CMake 3.31 and later would join these, too.
    set(kernels ${arg_SOURCES})
    list(FILTER kernels INCLUDE REGEX "\\.cu$")
    if(kernels)
      set_source_files_properties(${kernels} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    endif()
    # A source that another one includes is no header.
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
  endif()
endfunction()

# _tessera_private_settings(name targets...): of what nobody links.
function(_tessera_private_settings name)
  # -fPIC instead of -fPIE, so that the libraries' precompiled header is shared.
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fPIC>)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARGN})
  _tessera_settings(${name})
endfunction()

# tessera_program(name SOURCES a.cpp ... LINK targets...): an executable; CUDA builds load LibTorch's CUDA part. tessera-* are installed.
function(tessera_program name)
  cmake_parse_arguments(arg "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  _tessera_linked("${arg_LINK}" arg_LINK)
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  _tessera_private_settings(${name} ${arg_LINK})
  set_property(GLOBAL APPEND PROPERTY TESSERA_PROGRAMS ${name})
  if(TESSERA_HAS_CUDA)
    target_link_libraries(${name} PRIVATE tessera_torch_cuda)
  endif()
  if(TESSERA_INSTALL AND name MATCHES "^tessera-")
    set_target_properties(${name} PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}" INSTALL_RPATH_USE_LINK_PATH ON)
    if(TESSERA_WHEEL)
      set_target_properties(${name} PROPERTIES INSTALL_RPATH "$ORIGIN/../lib;$ORIGIN/../../torch/lib" INSTALL_RPATH_USE_LINK_PATH OFF)
    endif()
    install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
  endif()
endfunction()

# tessera_objects(name SOURCES a.cpp ... LINK targets...): files that are compiled and not linked.
function(tessera_objects name)
  cmake_parse_arguments(arg "" "" "SOURCES;LINK" ${ARGN})
  add_library(${name} OBJECT ${arg_SOURCES})
  _tessera_private_settings(${name} ${arg_LINK})
endfunction()
