// SPDX-License-Identifier: MIT
#include "lib/data/lines.h"

#include <string_view>

#include "lib/core/file.h"
#include "lib/data/foreign_input.h"

namespace tessera {
namespace {

constexpr JsonLimits kLimits;  // per line or item
constexpr const char* kBlank = " \t\r\n";

void check_size(const std::string& begun, const std::string& place, const char* what) {
  check(begun.size() <= kLimits.max_bytes, ErrorCode::kDataLoss, place, ": ", what,
        " of more than ", kLimits.max_bytes, " bytes");
}

// Lines of a file read in pieces.
class Lines {
 public:
  using Take = std::function<void(std::string_view line, int64_t number)>;
  Lines(const std::string& path, const Take& take) : path_(path), take_(take) {}

  void add(std::string_view piece) {
    for (size_t end = piece.find('\n'); end != piece.npos; end = piece.find('\n')) {
      if (begun_.empty()) {
        line(piece.substr(0, end));
      } else {
        line(begun_.append(piece.substr(0, end)));
        begun_.clear();
      }
      piece.remove_prefix(end + 1);
    }
    begun_ += piece;
    check_size(begun_, concat(path_, ":", number_ + 1), "a line");
  }
  void finish() {
    if (!begun_.empty()) line(begun_);
  }

 private:
  void line(std::string_view text) {
    ++number_;
    if (text.find_first_not_of(kBlank) != text.npos) take_(text, number_);
  }

  const std::string& path_;
  const Take& take_;
  std::string begun_;  // start of a line whose end is not read yet
  int64_t number_ = 0;
};

// Items of an array read in pieces. Malformed JSON inside an item is left to its parser.
class Items {
 public:
  Items(const std::string& path, const TakeJsonText& take) : path_(path), take_(take) {}

  void add(std::string_view piece) {
    for (const char c : piece) {
      if (state_ == State::kInside) {
        inside(c);
      } else if (std::string_view(kBlank).find(c) == std::string_view::npos) {
        check(state_ == State::kBefore, ErrorCode::kDataLoss, path_,
              ": something stands behind the end of the array");
        state_ = State::kInside;  // c is the opening bracket
      }
    }
    check_size(item_, place(), "an item");
  }
  void finish() const {
    check(state_ == State::kAfter, ErrorCode::kDataLoss, path_, ": the array has no end; ", place(),
          " is the last one begun");
  }

 private:
  enum class State { kBefore, kInside, kAfter };

  std::string place() const { return concat(path_, ": item ", number_); }

  void inside(char c) {
    if (in_string_) {
      in_string_ = escaped_ || c != '"';
      escaped_ = !escaped_ && c == '\\';
    } else if (c == '"') {
      in_string_ = true;
    } else if (c == '[' || c == '{') {
      ++depth_;
    } else if (depth_ > 0 && (c == ']' || c == '}')) {
      --depth_;
    } else if (depth_ == 0 && (c == ',' || c == ']')) {
      return end_item(c == ']');
    }
    item_ += c;
  }

  void end_item(bool last) {
    const bool blank = item_.find_first_not_of(kBlank) == item_.npos;
    if (!blank || !last || number_ > 1) {
      check(!blank, ErrorCode::kDataLoss, place(), ": nothing stands beside a comma");
      take_(item_, place());
    }
    item_.clear();
    ++number_;
    if (last) state_ = State::kAfter;
  }

  const std::string& path_;
  const TakeJsonText& take_;
  State state_ = State::kBefore;
  std::string item_;
  int64_t depth_ = 0, number_ = 1;
  bool in_string_ = false, escaped_ = false;
};

// Lines or items, depending on the first non-blank character.
class Texts {
 public:
  Texts(const std::string& path, const TakeJsonText& take)
      : of_line_([&path, &take](std::string_view text, int64_t line) {
          take(text, concat(path, ":", line));
        }),
        lines_(path, of_line_),
        items_(path, take) {}

  void add(std::string_view piece) {
    if (!known_) {
      const size_t first = piece.find_first_not_of(kBlank);
      known_ = first != piece.npos;
      array_ = known_ && piece[first] == '[';
    }
    array_ ? items_.add(piece) : lines_.add(piece);
  }
  void finish() { array_ ? items_.finish() : lines_.finish(); }

 private:
  const Lines::Take of_line_;
  Lines lines_;
  Items items_;
  bool known_ = false, array_ = false;
};

}  // namespace

void for_each_json_line(const std::string& path,
                        const std::function<void(const Json&, int64_t line)>& row,
                        const Progress& progress) {
  const Lines::Take parse = [&](std::string_view text, int64_t line) {
    row(Json::parse(text, kLimits, concat(path, ":", line)), line);
  };
  refuse_foreign_file(path);
  Lines lines(path, parse);
  for_each_piece(
      path, [&](std::string_view piece) { lines.add(piece); }, progress);
  lines.finish();
}

void for_each_json_text(const std::string& path, const TakeJsonText& row,
                        const Progress& progress) {
  refuse_foreign_file(path);
  Texts texts(path, row);
  for_each_piece(
      path, [&](std::string_view piece) { texts.add(piece); }, progress);
  texts.finish();
}

void for_each_json_text_of(std::string_view content, const std::string& origin,
                           const TakeJsonText& row) {
  Texts texts(origin, row);
  texts.add(content);
  texts.finish();
}

}  // namespace tessera
