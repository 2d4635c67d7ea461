// SPDX-License-Identifier: MIT
#pragma once
// The texts of --help. FlagSet calls them with what it knows of its flags.
#include <string>
#include <vector>

namespace tessera::programs {

struct HelpRow {
  std::string name, section, help;
  std::string brief;          // on one screen; "": not there
  std::string kind;           // "int"
  std::string default_value;  // "": none
  std::vector<std::string> choices;
  bool is_switch = false;
};

struct HelpPage {
  std::string program, summary;
  std::string example;  // its arguments
  std::vector<HelpRow> rows;
  std::vector<std::string> end;  // lines below all rows
};

constexpr size_t kScreenRows = 20, kScreenWidth = 80, kHelpWidth = 100;

// At most 23 lines of at most 80 columns: the first twenty rows that have a brief text.
std::string one_screen(const HelpPage& page);
// Every row, in sections, at most so many columns wide.
std::string all_sections(const HelpPage& page, size_t width = kHelpWidth);
// One row, and `facts`, one a line.
std::string paragraph(const HelpRow& row, const std::vector<std::string>& facts);

}  // namespace tessera::programs
