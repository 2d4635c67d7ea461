# SPDX-License-Identifier: MIT
# LibTorch as targets of our own: TorchConfig.cmake checks for a CUDA toolkit even when only the CPU part is used.
# Read by the build and, installed, by find_package(tessera); knows CMake 3.16.

# What tessera was built and tested with on CPUs, and on GPUs.
set(TESSERA_TORCH_LEAST 2.9)
set(TESSERA_TORCH_NEWEST 2.15)  # to be raised when nightly.sh torch_versions has passed with a newer one
set(TESSERA_TORCH_CUDA 2.11)

# tessera_torch_version(folder variable): the LibTorch in this folder, "" when there is none.
function(tessera_torch_version folder variable)
  set(version "")
  if(EXISTS ${folder}/lib/libtorch_cpu.so)
    foreach(header headeronly csrc/api/include/torch)  # the second up to 2.9
      set(header ${folder}/include/torch/${header}/version.h)
      if(version STREQUAL "" AND EXISTS ${header})
        file(STRINGS ${header} version REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]")
        string(REGEX REPLACE "[^0-9;]" "" version "${version}")
        string(REPLACE ";" "." version "${version}")
      endif()
    endforeach()
  endif()
  set(${variable} "${version}" PARENT_SCOPE)
endfunction()

# tessera_check_torch(version folder cuda): refuses what is too old; says once what was not tried. cuda: GPUs are used.
function(tessera_check_torch version folder cuda)
  if(version VERSION_LESS TESSERA_TORCH_LEAST)
    message(FATAL_ERROR "LibTorch ${version} in ${folder} is too old: tessera needs ${TESSERA_TORCH_LEAST} or later. "
                        "Name another one with -DTESSERA_TORCH_ROOT=<folder with lib/libtorch_cpu.so>.")
  endif()
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" minor ${version})
  set(text "")
  if(minor VERSION_GREATER TESSERA_TORCH_NEWEST)
    set(text "LibTorch ${version} is newer than what tessera was tried with; ${TESSERA_TORCH_NEWEST} is the newest.")
  elseif(cuda AND NOT minor VERSION_EQUAL TESSERA_TORCH_CUDA)
    set(text "On GPUs tessera was run with LibTorch ${TESSERA_TORCH_CUDA} only, not with ${version}.")
  endif()
  if(text AND NOT TESSERA_TORCH_SAID STREQUAL text)
    message(WARNING "${text}")
    set(TESSERA_TORCH_SAID "${text}" CACHE INTERNAL "The warning about LibTorch's version that was given")
  endif()
endfunction()

# tessera_find_torch(version folder...): sets TESSERA_TORCH_FOUND_ROOT and TESSERA_TORCH_VERSION, both "" when nothing was found, and
# TESSERA_TORCH_SEARCHED. A folder that the user names (TESSERA_TORCH_ROOT, Torch_ROOT, Torch_DIR) is the only one looked into, else
# the given ones are, in their order. Another version than this one (if it is not "") is not taken; "2.11" is each 2.11.x.
function(tessera_find_torch version)
  set(named ${TESSERA_TORCH_ROOT} $ENV{TESSERA_TORCH_ROOT} ${Torch_ROOT} $ENV{Torch_ROOT})
  if(Torch_DIR)
    list(APPEND named ${Torch_DIR}/../../..)
  endif()
  set(folders ${ARGN})
  if(named)
    list(GET named 0 folders)
  endif()
  set(root "")
  set(found "")
  set(searched "")
  foreach(folder ${folders})
    get_filename_component(folder ${folder} ABSOLUTE)
    tessera_torch_version(${folder} found)
    if(found AND (version STREQUAL "" OR found VERSION_EQUAL version OR found MATCHES "^${version}\\."))
      set(root ${folder})
      break()
    endif()
    string(APPEND searched "\n  ${folder}: ${found}")
    set(found "")
  endforeach()
  string(REGEX REPLACE ": (\n|$)" ": no LibTorch\\1" searched "${searched}")
  set(TESSERA_TORCH_FOUND_ROOT "${root}" PARENT_SCOPE)
  set(TESSERA_TORCH_VERSION "${found}" PARENT_SCOPE)
  set(TESSERA_TORCH_SEARCHED "${searched}" PARENT_SCOPE)
endfunction()

# tessera_torch_targets(root): tessera_torch (c10, torch_cpu) and, where this LibTorch has it, tessera_torch_cuda. Programs find the
# libraries where they are now, also after they were installed.
function(tessera_torch_targets root)
  set(lib ${root}/lib)
  add_library(tessera_torch INTERFACE IMPORTED GLOBAL)
  set_target_properties(tessera_torch PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${root}/include;${root}/include/torch/csrc/api/include")
  # CUDA run-time libraries that the wheel's libraries need at link time live in sibling wheels.
  get_filename_component(site ${root} DIRECTORY)
  file(GLOB folders ${site}/nvidia/*/lib)
  set(options "")
  foreach(folder ${lib} ${folders})
    list(APPEND options -Wl,-rpath-link,${folder})
    if(NOT TESSERA_WHEEL)  # whose files find them from where they lie
      list(APPEND options -Wl,-rpath,${folder})
    endif()
  endforeach()
  target_link_options(tessera_torch INTERFACE ${options})
  target_link_libraries(tessera_torch INTERFACE ${lib}/libc10.so ${lib}/libtorch_cpu.so)

  if(EXISTS ${lib}/libtorch_cuda.so)
    add_library(tessera_torch_cuda INTERFACE IMPORTED GLOBAL)
    # Kept although no symbol of it may be used: its operators register themselves. As a library, so that older policies keep it too.
    # Not libtorch.so: it has nothing of LibTorch, and its copy of std::filesystem::remove_all, which would be taken, calls a weak
    # symbol that is nowhere defined (2.11).
    target_link_libraries(tessera_torch_cuda INTERFACE tessera_torch ${lib}/libc10_cuda.so
      -Wl,--push-state,--no-as-needed,${lib}/libtorch_cuda.so,--pop-state)
  endif()
endfunction()
