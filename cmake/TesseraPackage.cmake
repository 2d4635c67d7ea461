# SPDX-License-Identifier: MIT
# Install rules: libraries, headers and a package configuration for find_package(tessera); programs (tessera_program); schema, documents.
if(NOT TESSERA_INSTALL)
  return()
endif()
include(CMakePackageConfigHelpers)
set(_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tessera)
set(_share_dir ${CMAKE_INSTALL_DATADIR}/tessera)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/tessera DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
string(REGEX MATCH "^[0-9]+\\.[0-9]+" TESSERA_TORCH_MINOR ${TESSERA_TORCH_VERSION})
get_property(_parts GLOBAL PROPERTY TESSERA_PARTS)
set(_names_of_shared "")  # targets that are other names of tessera::shared
if(TESSERA_WHEEL)
  list(TRANSFORM _parts REPLACE "^tessera_" "" OUTPUT_VARIABLE _names_of_shared)
  list(PREPEND _names_of_shared tessera)
  set(_folder_of_torch [[${CMAKE_CURRENT_LIST_DIR}/../../../../torch]])
  set(_version_of_torch ${TESSERA_TORCH_MINOR})
  set(TESSERA_EXTERNALS "")
  set(_site_of_build "")
else()
  install(TARGETS tessera ${_parts} EXPORT tesseraTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
  set(_folder_of_torch ${TESSERA_TORCH_FOUND_ROOT})
  set(_version_of_torch ${TESSERA_TORCH_VERSION})
  set(_site_of_build ${TESSERA_TORCH_SITE})
endif()
include(TesseraShared)
install(EXPORT tesseraTargets NAMESPACE tessera:: DESTINATION ${_package_dir} COMPONENT development)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/tesseraConfig.cmake.in
  ${PROJECT_BINARY_DIR}/tesseraConfig.cmake INSTALL_DESTINATION ${_package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tesseraConfigVersion.cmake COMPATIBILITY SameMinorVersion)
# The shared library for build systems other than CMake; torch=DIRECTORY may be set anew (--define-variable).
file(RELATIVE_PATH _pc_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(${PROJECT_SOURCE_DIR}/cmake/tessera.pc.in ${PROJECT_BINARY_DIR}/tessera.pc @ONLY)
if(NOT TESSERA_WHEEL)  # pip says nobody where its packages lie
  install(FILES ${PROJECT_BINARY_DIR}/tessera.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
endif()
install(FILES ${PROJECT_BINARY_DIR}/tesseraConfig.cmake ${PROJECT_BINARY_DIR}/tesseraConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/cmake/TesseraTorch.cmake
        DESTINATION ${_package_dir} COMPONENT development)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs/schema DESTINATION ${_share_dir} COMPONENT programs)
# What the pages' commands name, at the same paths below share/tessera: who installed a wheel has no clone.
set(_examples compare/demo.json compare/demo_models.txt compare/demo_rows.txt)
foreach(_folder custom_strategy data dry_step loops own_model port slurm studies)
  list(APPEND _examples ${_folder}/)
endforeach()
foreach(_example ${_examples})
  if(_example MATCHES "/$")
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples/${_example} DESTINATION ${_share_dir}/examples/${_example} COMPONENT programs
            USE_SOURCE_PERMISSIONS)
  else()
    get_filename_component(_folder ${_example} DIRECTORY)
    install(FILES ${PROJECT_SOURCE_DIR}/examples/${_example} DESTINATION ${_share_dir}/examples/${_folder} COMPONENT programs)
  endif()
endforeach()
install(PROGRAMS ${PROJECT_SOURCE_DIR}/scripts/parquet_to_jsonl.py ${PROJECT_SOURCE_DIR}/scripts/send_metrics.py
        DESTINATION ${_share_dir}/scripts COMPONENT programs)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs/ DESTINATION ${_share_dir}/docs COMPONENT docs FILES_MATCHING PATTERN "*.md" PATTERN "*.svg"
        PATTERN schema EXCLUDE)
install(FILES ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/CHANGELOG.md ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/NOTICE
        DESTINATION ${_share_dir}/docs COMPONENT docs)
# Completions for bash and zsh, read off the programs. In a wheel they go where pip puts shared files.
find_package(Python3 COMPONENTS Interpreter QUIET)
if(Python3_Interpreter_FOUND AND TESSERA_BUILD_EXAMPLES)
  set(_share "\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}")
  if(TESSERA_WHEEL AND SKBUILD_DATA_DIR)
    set(_share ${SKBUILD_DATA_DIR}/share)
  endif()
  install(CODE "
    execute_process(COMMAND ${Python3_EXECUTABLE} -B ${PROJECT_SOURCE_DIR}/scripts/make_completions.py ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} \"${_share}\"
                    RESULT_VARIABLE _status)
    if(NOT _status EQUAL 0)
      message(WARNING \"The completions for shells were not made.\")
    endif()" COMPONENT programs)
endif()
