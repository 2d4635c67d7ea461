// SPDX-License-Identifier: MIT
#pragma once
// A host program's locale that writes 1234567.5 as "1.234.567,5", for C++ streams, and for C if the
// host can create one.
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <locale>
#include <string>

#include "tests/support/temp_dir.hpp"

namespace tessera::test {

class CommaLocale {
 public:
  CommaLocale() {
    const std::string path = folder_.path("de_DE.UTF-8");
    const std::string command = "localedef -i de_DE -f UTF-8 '" + path + "' >/dev/null 2>&1";
    made_ = std::system(command.c_str()) == 0;
    setenv("LOCPATH", folder_.path(".").c_str(), 1);
    made_ = made_ && std::setlocale(LC_ALL, "de_DE.UTF-8") != nullptr;
    before_ = std::locale::global(std::locale(std::locale::classic(), new Commas));
    // An unnamed locale does not change C's.
  }
  ~CommaLocale() {
    std::locale::global(before_);
    std::setlocale(LC_ALL, "C");
    unsetenv("LOCPATH");
  }
  CommaLocale(const CommaLocale&) = delete;
  CommaLocale& operator=(const CommaLocale&) = delete;

  // True if C's functions write commas; false without localedef or de_DE.
  bool of_c() const { return made_; }

 private:
  struct Commas : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
  };
  const TempDir folder_;
  bool made_ = false;
  std::locale before_;
};

}  // namespace tessera::test
