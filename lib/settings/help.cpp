// SPDX-License-Identifier: MIT
#include "lib/settings/help.h"

#include <algorithm>

#include "lib/core/joined.h"
#include "lib/core/terminal.h"
#include "tessera/core/error.h"

namespace tessera::programs {
namespace {

// Column of the texts, less in a narrow window.
size_t help_column(size_t width) { return width < kHelpWidth ? 28 : 36; }

// Cut at a word, with dots, to this width.
std::string shortened(const std::string& text, size_t width) {
  if (text.size() <= width) return text;
  const size_t end = text.rfind(' ', width - 3);
  return text.substr(0, end == std::string::npos ? width - 3 : end) + "...";
}

std::string type_of(const HelpRow& row) { return row.choices.empty() ? row.kind : "choice"; }

std::string default_of(const HelpRow& row) {
  return row.default_value.empty() ? "" : concat("[", row.default_value, "]");
}

// Default for the one screen, where lists are cut.
std::string short_default(const HelpRow& row) {
  constexpr size_t kMost = 9;
  const std::string text = default_of(row);
  return text.size() <= kMost ? text : text.substr(0, kMost - 3) + "..]";
}

// The choices if they fit, else the brief text.
std::string short_text(const HelpRow& row, size_t width) {
  const std::string values = joined(row.choices, "|");
  return shortened(values.empty() || values.size() > width ? row.brief : values, width);
}

// "  --name a|b|c", wrapped if long; later lines begin with |.
std::string left_of(const HelpRow& row, size_t width) {
  std::string text = "  --" + row.name;
  if (row.choices.empty()) return text;
  text += " ";
  size_t column = text.size();
  const std::string indent(6, ' ');
  for (size_t i = 0; i < row.choices.size(); ++i) {
    const std::string piece = (i > 0 ? "|" : "") + row.choices[i];
    if (i > 0 && column + piece.size() > width) {
      text += "\n" + indent;
      column = indent.size();
    }
    text += piece;
    column += piece.size();
  }
  return text;
}

}  // namespace

std::string one_screen(const HelpPage& page) {
  std::vector<const HelpRow*> rows;
  for (const HelpRow& row : page.rows) {
    if (!row.brief.empty() && rows.size() < kScreenRows) rows.push_back(&row);
  }
  size_t name_width = 0, type_width = 0, default_width = 0;
  for (const HelpRow* row : rows) {
    name_width = std::max(name_width, row->name.size() + 3);
    type_width = std::max(type_width, type_of(*row).size() + 1);
    default_width = std::max(default_width, short_default(*row).size() + 1);
  }
  std::string text = concat("Usage: ", page.program, " --flag value, --help all|FLAG, --version\n");
  text += shortened(page.summary, kScreenWidth) + "\n";
  for (const HelpRow* row : rows) {
    const std::string left = padded("--" + row->name, name_width) +
                             padded(type_of(*row), type_width) +
                             padded(short_default(*row), default_width);
    text += left + short_text(*row, kScreenWidth - left.size()) + "\n";
  }
  if (!page.example.empty()) text += concat("E.g. ", page.program, " ", page.example, "\n");
  return text;
}

std::string all_sections(const HelpPage& page, size_t width) {
  const size_t column = help_column(width);
  std::string text = concat("Usage: ", page.program, " [--flag value | --flag=value]...\n",
                            wrapped(page.summary, 0, 0, width), "\n");
  std::string section;
  for (const HelpRow& row : page.rows) {
    if (row.section != section) text += "\n" + row.section + ":\n";
    section = row.section;
    std::string left = left_of(row, width);
    if (left.size() + 2 > column) {
      left += "\n" + std::string(column, ' ');
    } else {
      left = padded(left, column);
    }
    const std::string value = row.is_switch && row.default_value == "false" ? "" : default_of(row);
    text += left + wrapped(concat(row.help, " ", value), column, column, width) + "\n";
  }
  for (const std::string& line : page.end) text += "\n" + wrapped(line, 0, 0, width) + "\n";
  return text;
}

std::string paragraph(const HelpRow& row, const std::vector<std::string>& facts) {
  const auto line = [](const std::string& words) {
    return "  " + wrapped(words, 2, 4, kScreenWidth) + "\n";
  };
  std::string text = concat("--", row.name, "  (", row.section, ")\n") + line(row.help);
  text += line(row.choices.empty() ? "Type: " + row.kind : "Type: one of " + joined(row.choices));
  text += line(row.default_value.empty() ? "Default: not given" : "Default: " + row.default_value);
  for (const std::string& fact : facts) text += line(fact);
  return text;
}

}  // namespace tessera::programs
