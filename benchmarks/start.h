// SPDX-License-Identifier: MIT
#pragma once
// The start of a program of Google Benchmark's that has flags of its own.
#include <benchmark/benchmark.h>

#include <iostream>
#include <string>
#include <string_view>

namespace tessera::bench {

// Takes Google Benchmark's flags out of the arguments. It keeps argv[0], which must outlive all
// rows. --help shows `usage` and then Google Benchmark's own help, and ends the program.
inline void start(int* argc, char** argv, const std::string& usage) {
  for (int i = 1; i < *argc; ++i) {
    if (argv[i] == std::string_view("--help")) std::cout << usage << std::endl;
  }
  benchmark::Initialize(argc, argv);
}

}  // namespace tessera::bench
