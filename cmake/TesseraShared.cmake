# SPDX-License-Identifier: MIT
# libtessera.so: every part in one library, the target tessera::shared. It shows tessera's own names and hides the libraries inside it.
# Programs and tests of this tree link the parts as they are, programs of a wheel (TESSERA_WHEEL) this one.
list(TRANSFORM _parts REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>" OUTPUT_VARIABLE _objects)
add_library(tessera_shared SHARED ${_objects})
set_target_properties(tessera_shared PROPERTIES
  OUTPUT_NAME tessera EXPORT_NAME shared LINKER_LANGUAGE CXX
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
  INSTALL_RPATH "$ORIGIN" INSTALL_RPATH_USE_LINK_PATH ON
  LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/tessera.map)
target_link_libraries(tessera_shared PRIVATE ${_parts} PUBLIC tessera_torch)  # the parts for what they link
target_link_options(tessera_shared PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/tessera.map -Wl,--no-undefined)
target_compile_features(tessera_shared PUBLIC cxx_std_20)
target_include_directories(tessera_shared INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                                    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
if(TESSERA_WHEEL)
  # Debian's Abseil and Highway are shared: those that are needed lie beside it (scripts/wheel.sh).
  set_target_properties(tessera_shared PROPERTIES
    INSTALL_RPATH "$ORIGIN;$ORIGIN/../../torch/lib" INSTALL_RPATH_USE_LINK_PATH OFF)
  target_link_options(tessera_shared PRIVATE -Wl,--as-needed)
endif()
if(TESSERA_WHEEL)  # one file: a wheel has no links, and would hold it three times
  set_property(TARGET tessera_shared PROPERTY VERSION)
  install(TARGETS tessera_shared EXPORT tesseraTargets LIBRARY DESTINATION lib COMPONENT programs NAMELINK_SKIP)
else()
  install(TARGETS tessera_shared EXPORT tesseraTargets
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT programs NAMELINK_COMPONENT development)
endif()
