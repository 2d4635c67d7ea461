// SPDX-License-Identifier: MIT
#pragma once
// Start of a Google Benchmark program with its own flags.
#include <benchmark/benchmark.h>

#include <iostream>
#include <string>
#include <string_view>

namespace tessera::bench {

// Removes Google Benchmark's flags from the arguments. argv[0] must outlive all rows. --help prints
// `usage` and Google Benchmark's help, and ends the program.
inline void start(int* argc, char** argv, const std::string& usage) {
  for (int i = 1; i < *argc; ++i) {
    if (argv[i] == std::string_view("--help")) std::cout << usage << std::endl;
  }
  benchmark::Initialize(argc, argv);
}

}  // namespace tessera::bench
