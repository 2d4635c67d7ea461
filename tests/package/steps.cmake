# SPDX-License-Identifier: MIT
# cmake -DSTEP=<function below> -DWORK_DIR= ... -P steps.cmake: one ctest entry of this folder.
cmake_minimum_required(VERSION 3.25)

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "exit ${code}: ${ARGN}")
  endif()
endfunction()

# must_fail(text command...): the command fails and says this.
function(must_fail text)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE said ERROR_VARIABLE said)
  string(REGEX REPLACE "[ \n]+" " " said "${said}")
  string(FIND "${said}" "${text}" position)
  if(code EQUAL 0 OR position EQUAL -1)
    message(FATAL_ERROR "exit ${code} instead of a failure that says '${text}': ${ARGN}\n${said}")
  endif()
endfunction()

function(must_exist)
  foreach(file ${ARGN})
    if(NOT EXISTS ${file})
      message(FATAL_ERROR "not installed: ${file}")
    endif()
  endforeach()
endfunction()

# Configures, builds and runs the program of a project. Arguments: folder, build folder, program, options of cmake.
function(build_client source build program)
  run(${CMAKE_COMMAND} -S ${source} -B ${build} -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}
      ${ARGN})
  run(${CMAKE_COMMAND} --build ${build} --parallel 2 --target ${program})
  run(${build}/${program} ${PROGRAM_ARGUMENTS})
endfunction()

function(install_tree)
  file(REMOVE_RECURSE ${WORK_DIR}/prefix)
  run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${WORK_DIR}/prefix)
  must_exist(${WORK_DIR}/prefix/include/tessera/train/trainer.h ${WORK_DIR}/prefix/share/tessera/schema/metrics.schema.json
             ${WORK_DIR}/prefix/share/tessera/examples/data/tokenizer/tokenizer.json ${WORK_DIR}/prefix/share/tessera/scripts/parquet_to_jsonl.py
             ${WORK_DIR}/prefix/share/tessera/docs/concepts/one-step.md ${WORK_DIR}/prefix/share/tessera/docs/LICENSE)
  separate_arguments(programs UNIX_COMMAND "${PROGRAMS}")
  foreach(program ${programs})
    must_exist(${WORK_DIR}/prefix/bin/${program})
  endforeach()
endfunction()

function(find_installed)
  file(REMOVE_RECURSE ${WORK_DIR}/find_${POLICIES})
  build_client(${CLIENT_DIR} ${WORK_DIR}/find_${POLICIES} client -DWAY=find_package -DPOLICIES=${POLICIES} -DCMAKE_CXX_FLAGS=${FLAGS}
               -DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix)
endfunction()

# libtessera.so, found where it is moved to.
function(shared)
  file(REMOVE_RECURSE ${WORK_DIR}/shared)
  file(COPY ${WORK_DIR}/prefix DESTINATION ${WORK_DIR}/shared)
  build_client(${CLIENT_DIR} ${WORK_DIR}/shared/build client -DWAY=find_package -DSHARED=ON -DPOLICIES=3.16 -DCMAKE_CXX_FLAGS=${FLAGS}
               -DCMAKE_PREFIX_PATH=${WORK_DIR}/shared/prefix)
endfunction()

# A LibTorch as its archive unpacks: a folder of that name, which no wheel surrounds. The client is not optimised.
function(zip_layout)
  file(REMOVE_RECURSE ${WORK_DIR}/zip)
  file(MAKE_DIRECTORY ${WORK_DIR}/zip/libtorch)
  foreach(folder include lib share)
    file(CREATE_LINK ${TORCH_ROOT}/${folder} ${WORK_DIR}/zip/libtorch/${folder} SYMBOLIC)
  endforeach()
  build_client(${CLIENT_DIR} ${WORK_DIR}/zip/build client -DWAY=find_package -DPOLICIES=3.25 -DCMAKE_BUILD_TYPE=Debug
               -DCMAKE_CXX_FLAGS=${FLAGS} -DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix -DTorch_ROOT=${WORK_DIR}/zip/libtorch)
endfunction()

# Headers are free of warnings also where they are not those of a system, and say which standard they need.
function(warnings)
  set(compile ${COMPILER} -fsyntax-only -I${WORK_DIR}/prefix/include -isystem ${TORCH_ROOT}/include
              -isystem ${TORCH_ROOT}/include/torch/csrc/api/include ${CLIENT_DIR}/client.cpp)
  run(${compile} -std=c++20 -Wall -Wextra -Wpedantic -Wshadow -Werror)
  must_fail("tessera needs C++20: compile with -std=c++20 or later" ${compile} -std=c++17)
endfunction()

function(pkg_config)
  file(REMOVE_RECURSE ${WORK_DIR}/pkg_config)
  file(MAKE_DIRECTORY ${WORK_DIR}/pkg_config)
  set(ENV{PKG_CONFIG_PATH} ${WORK_DIR}/prefix/lib/pkgconfig)
  execute_process(COMMAND ${PKG_CONFIG} --cflags --libs tessera OUTPUT_VARIABLE flags COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  run(${COMPILER} -O0 ${CLIENT_DIR}/client.cpp -o ${WORK_DIR}/pkg_config/client ${flags})
  run(${WORK_DIR}/pkg_config/client)
endfunction()

# No path of the folder that was installed into is left, in the package or in programs.
function(moved)
  file(REMOVE_RECURSE ${WORK_DIR}/before ${WORK_DIR}/after ${WORK_DIR}/moved)
  run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${WORK_DIR}/before)
  file(RENAME ${WORK_DIR}/before ${WORK_DIR}/after)
  run(${WORK_DIR}/after/bin/tessera-finetune-squad --help)
  build_client(${CLIENT_DIR} ${WORK_DIR}/moved client -DWAY=find_package -DPOLICIES=3.25 -DCMAKE_CXX_FLAGS=${FLAGS}
               -Dtessera_DIR=${WORK_DIR}/after/lib/cmake/tessera)
  file(REMOVE_RECURSE ${WORK_DIR}/after)
endfunction()

# Every installed header compiles, and includes installed ones only.
function(headers)
  file(REMOVE_RECURSE ${WORK_DIR}/headers)
  run(${CMAKE_COMMAND} -S ${CLIENT_DIR}/../headers -B ${WORK_DIR}/headers -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${COMPILER}
      -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER} -DCMAKE_CXX_FLAGS=${FLAGS} -DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix)
  run(${CMAKE_COMMAND} --build ${WORK_DIR}/headers)
endfunction()

# A strategy of a user's own, held to the installed conformance suite; and one rank of a layout that runs dry.
function(custom_strategy)
  file(REMOVE_RECURSE ${WORK_DIR}/custom)
  build_client(${CLIENT_DIR} ${WORK_DIR}/custom custom_strategy -DCMAKE_CXX_FLAGS=${FLAGS} -DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix)
  build_client(${CLIENT_DIR}/../dry_step ${WORK_DIR}/dry_step dry_step -DCMAKE_CXX_FLAGS=${FLAGS} -DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix)
endfunction()

# Programs in the shapes that users write, each beside a plain LibTorch loop; and one of examples/loops by its command.
function(strangers)
  set(PROGRAM_ARGUMENTS all)
  build_client(${CLIENT_DIR}/../strangers ${WORK_DIR}/strangers strangers -DCMAKE_CXX_FLAGS=${FLAGS} -DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix)
  set(PROGRAM_ARGUMENTS zero3 2)
  build_client(${EXAMPLES_DIR}/loops ${WORK_DIR}/loops own_loop -DCMAKE_CXX_FLAGS=${FLAGS} -DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix)
endfunction()

# A plain LibTorch loop and the same on ranks.
function(ports)
  file(REMOVE_RECURSE ${WORK_DIR}/ports)
  run(${CMAKE_COMMAND} -S ${EXAMPLES_DIR}/port -B ${WORK_DIR}/ports -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${COMPILER}
      -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER} -DCMAKE_CXX_FLAGS=${FLAGS} -DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix)
  run(${CMAKE_COMMAND} --build ${WORK_DIR}/ports --parallel 2)
  run(${PYTHON} -B ${CLIENT_DIR}/../ports.py ${EXAMPLES_DIR}/.. ${WORK_DIR}/ports ${MPIRUN})
endfunction()

# A program that trains a model of a user's own.
function(own_model)
  file(REMOVE_RECURSE ${WORK_DIR}/own_model)
  set(PROGRAM_ARGUMENTS --output_dir ${WORK_DIR}/own_model/run --max_steps 3)
  build_client(${CLIENT_DIR} ${WORK_DIR}/own_model own_model -DCMAKE_CXX_FLAGS=${FLAGS} -DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix)
endfunction()

function(refusals)
  set(configure ${CMAKE_COMMAND} -S ${CLIENT_DIR} -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${COMPILER} -DWAY=find_package -DPOLICIES=3.16
                -DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix)
  file(REMOVE_RECURSE ${WORK_DIR}/refusals)
  must_fail("it was built against LibTorch" ${configure} -B ${WORK_DIR}/refusals/torch -DTESSERA_TORCH_ROOT=${WORK_DIR}/refusals)
  must_fail("set TESSERA_TORCH_ROOT or Torch_ROOT" ${configure} -B ${WORK_DIR}/refusals/torch -DTESSERA_TORCH_ROOT=${WORK_DIR}/refusals)
  must_fail("has no component 'magic'" ${configure} -B ${WORK_DIR}/refusals/component -DCOMPONENTS=magic)
endfunction()

# A part of another project is configured, and has the targets of that name.
function(configure_from_source)
  file(REMOVE_RECURSE ${WORK_DIR}/configured)
  run(${CMAKE_COMMAND} -S ${CLIENT_DIR} -B ${WORK_DIR}/configured -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${COMPILER} -DWAY=add_subdirectory
      -DPOLICIES=3.25 -DSOURCE=${SOURCE_DIR} -DTESSERA_TORCH_ROOT=${TORCH_ROOT} -DTESSERA_WITH_CUDA=OFF)
  run(${CMAKE_COMMAND} --build ${WORK_DIR}/configured --target client -- -n)
endfunction()

# add_subdirectory and fetch_content one after the other in one build folder: the second compiles nothing again.
function(from_source)
  set(ENV{CCACHE_SLOPPINESS} pch_defines,time_macros,include_file_mtime,include_file_ctime)
  set(ENV{CCACHE_NOHASHDIR} 1)
  set(ENV{CCACHE_BASEDIR} ${SOURCE_DIR})
  build_client(${CLIENT_DIR} ${WORK_DIR}/sources client -DWAY=${WAY} -DPOLICIES=3.25 -DSOURCE=${SOURCE_DIR} -DCMAKE_CXX_FLAGS=-O0
               -DTESSERA_TORCH_ROOT=${TORCH_ROOT} -DTESSERA_WITH_CUDA=OFF)
  run(${CMAKE_COMMAND} --install ${WORK_DIR}/sources --prefix ${WORK_DIR}/nothing)
  if(EXISTS ${WORK_DIR}/nothing)
    message(FATAL_ERROR "tessera is installed with a project that only uses it.")
  endif()
endfunction()

# Programs start on hosts without a GPU's driver: nothing links its libraries.
function(no_driver)
  file(GLOB programs ${BIN_DIR}/*)
  list(LENGTH programs count)
  if(count EQUAL 0)
    message(FATAL_ERROR "${BIN_DIR} has no programs")
  endif()
  foreach(program ${programs})
    execute_process(COMMAND ${READELF} -d ${program} OUTPUT_VARIABLE section RESULT_VARIABLE code)
    if(NOT code EQUAL 0 OR NOT section MATCHES "NEEDED.*libc\\.so")
      message(FATAL_ERROR "${READELF} -d ${program} says nothing of its libraries")
    elseif(section MATCHES "NEEDED[^\n]*(libcuda|libnvidia-ml)\\.so")
      message(FATAL_ERROR "${program} does not start without the GPU's driver: it needs ${CMAKE_MATCH_1}.so")
    endif()
  endforeach()
endfunction()

cmake_language(CALL ${STEP})
