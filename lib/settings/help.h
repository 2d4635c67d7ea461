// SPDX-License-Identifier: MIT
#pragma once
// Layout of --help texts; called by FlagSet with its flags' data.
#include <string>
#include <vector>

namespace tessera::programs {

struct HelpRow {
  std::string name, section, help;
  std::string brief;          // text on the one screen; "": left out
  std::string kind;           // "int"
  std::string default_value;  // "": no default
  std::vector<std::string> choices;
  bool is_switch = false;
};

struct HelpPage {
  std::string program, summary;
  std::string example;  // arguments of the example
  std::vector<HelpRow> rows;
  std::vector<std::string> end;  // lines after all rows
};

constexpr size_t kScreenRows = 20, kScreenWidth = 80, kHelpWidth = 100;

// At most 23 lines of 80 columns: the first twenty rows with a brief text.
std::string one_screen(const HelpPage& page);
// All rows in sections, at most `width` columns wide.
std::string all_sections(const HelpPage& page, size_t width = kHelpWidth);
// One row and its `facts`, one per line.
std::string paragraph(const HelpRow& row, const std::vector<std::string>& facts);

}  // namespace tessera::programs
