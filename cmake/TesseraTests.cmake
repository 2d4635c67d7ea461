# SPDX-License-Identifier: MIT
# Test programs and ctest entries. Every entry has a label of this list; every Catch2 test case is an entry of its own.
set(TESSERA_TEST_LABELS unit lint conformance parity mpi gpu fuzz programs package readers launch nightly)
set(TESSERA_SKIPPED 77)  # exit status of an entry that this host cannot run

option(TESSERA_REQUIRE_ALL "Whatever would leave tests out is an error; always so where the environment says CI=true" OFF)
set(TESSERA_NO_SKIPS ${TESSERA_REQUIRE_ALL})
if("$ENV{CI}" MATCHES "^(1|true|TRUE|True|yes|on)$")
  set(TESSERA_NO_SKIPS ON)
endif()

# tessera_tests_need(variable what how): says what this host lacks; an error where no test may be left out.
function(tessera_tests_need variable what how)
  if(${variable})
    return()
  endif()
  if(TESSERA_NO_SKIPS)
    message(FATAL_ERROR "The tests need ${what}, and none may be left out (CI or TESSERA_REQUIRE_ALL): ${how}.")
  endif()
  message(STATUS "Tests without ${what} are left out: ${how}.")
endfunction()

function(_tessera_check_labels name)
  if(NOT ARGN)
    message(FATAL_ERROR "The ctest entry ${name} has no label; known are: ${TESSERA_TEST_LABELS}.")
  endif()
  foreach(label ${ARGN})
    if(NOT label IN_LIST TESSERA_TEST_LABELS)
      message(FATAL_ERROR "The ctest entry ${name} has the unknown label '${label}'; known are: ${TESSERA_TEST_LABELS}.")
    endif()
  endforeach()
endfunction()

# Sanitizers make programs several times as slow.
function(_tessera_patience seconds)
  if(CMAKE_CXX_FLAGS MATCHES "-fsanitize")
    math(EXPR more "${${seconds}} * 5")
    set(${seconds} ${more} PARENT_SCOPE)
  endif()
endfunction()

# tessera_entry(name LABELS l... COMMAND c... [RANKS n] [GPUS n] [EXIT "-eq 4" [SAYS text]] [TIMEOUT s] [ENVIRONMENT e...]): one ctest entry.
# RANKS starts it under mpirun. GPUS skips it on a host with fewer, which is a failure where TESSERA_GPUS says that they are there.
# EXIT: what `test` must say about the exit status; SAYS: what the output must contain then.
function(tessera_entry name)
  cmake_parse_arguments(arg "" "RANKS;GPUS;EXIT;SAYS;TIMEOUT" "COMMAND;LABELS;ENVIRONMENT" ${ARGN})
  _tessera_check_labels(${name} ${arg_LABELS})
  set(command ${arg_COMMAND})
  if(arg_RANKS)
    list(PREPEND command ${MPIEXEC_EXECUTABLE} --allow-run-as-root --oversubscribe -n ${arg_RANKS})
  endif()
  if(arg_SAYS)
    list(PREPEND command sh -c "said=$(\"$@\" 2>&1)\\; status=$?\\; echo \"$said\"\\; test $status ${arg_EXIT} && echo \"$said\" | grep -qF \"${arg_SAYS}\"" --)
  elseif(arg_EXIT)
    list(PREPEND command sh -c "\"$@\"\\; test $? ${arg_EXIT}" --)
  endif()
  if(arg_GPUS)
    list(PREPEND command $<TARGET_FILE:needs_gpus> ${arg_GPUS})
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  _tessera_patience(arg_TIMEOUT)
  add_test(NAME ${name} COMMAND ${command})
  # COST: what may take long begins first.
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT} COST ${arg_TIMEOUT}
                                          SKIP_RETURN_CODE ${TESSERA_SKIPPED} ENVIRONMENT "OMP_NUM_THREADS=1;TESSERA_CACHE_DIR=none;${arg_ENVIRONMENT}")
  if(arg_RANKS GREATER 1)
    set_tests_properties(${name} PROPERTIES PROCESSORS 2)
  endif()
  if(arg_GPUS)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
  endif()
endfunction()

# tessera_test(name SOURCES a.cpp ... LINK targets... LABELS l... [TIMEOUT s] [APART]): a Catch2 program; each of its cases is the ctest
# entry "name: case" with this time limit. The cases are asked for when the program is linked. Four sources are compiled at once, in a
# third of the time, so names in their unnamed namespaces differ; APART: each alone.
function(tessera_test name)
  cmake_parse_arguments(arg "APART" "TIMEOUT" "SOURCES;LINK;LABELS" ${ARGN})
  _tessera_check_labels(${name} ${arg_LABELS})
  tessera_program(${name} SOURCES ${arg_SOURCES} LINK ${arg_LINK} tessera_test_support)
  foreach(label ${arg_LABELS})
    if(NOT TARGET tests_${label})
      add_custom_target(tests_${label})
    endif()
    add_dependencies(tests_${label} ${name})
  endforeach()
  if(TESSERA_UNITY AND NOT arg_APART)
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 4)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  _tessera_patience(arg_TIMEOUT)
  set(script ${PROJECT_SOURCE_DIR}/cmake/test_cases.cmake)
  set(cases ${CMAKE_CURRENT_BINARY_DIR}/${name}_cases.cmake)
  string(REPLACE ";" "," labels "${arg_LABELS}")
  add_custom_command(TARGET ${name} POST_BUILD BYPRODUCTS ${cases} VERBATIM
    COMMAND ${CMAKE_COMMAND} -DNAME=${name} -DPROGRAM=$<TARGET_FILE:${name}> -DCATCH_VERSION=${Catch2_VERSION} -DLABELS=${labels}
            -DTIMEOUT=${arg_TIMEOUT} -DOUTPUT=${cases} -P ${script})
  set_property(TARGET ${name} APPEND PROPERTY LINK_DEPENDS ${script})
  file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/${name}_entries.cmake
"if(EXISTS \"${cases}\")
  include(\"${cases}\")
else()
  add_test(\"${name}: not built\" \"${name}-is-not-built\")
  set_tests_properties(\"${name}: not built\" PROPERTIES LABELS \"${arg_LABELS}\" TIMEOUT 1)
endif()
")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${CMAKE_CURRENT_BINARY_DIR}/${name}_entries.cmake)
endfunction()
