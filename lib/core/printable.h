// SPDX-License-Identifier: MIT
#pragma once
// Data as a terminal may be shown it.
#include <ostream>
#include <streambuf>
#include <string>
#include <string_view>

namespace tessera {

// What marks trained tokens where there are colours.
inline constexpr std::string_view kGreenText = "\033[32m", kPlainText = "\033[0m";

// Characters that a terminal obeys, and those that turn a text's direction, as "\x1b" and "\u202e".
// Line ends and tabs stay.
std::string printable(std::string_view text);
// The same but for kGreenText and kPlainText, which stay.
std::string printable_with_colours(std::string_view text);

// What is written to the stream while this is there becomes printable.
class PrintableStream : private std::streambuf {
 public:
  explicit PrintableStream(std::ostream& stream);
  ~PrintableStream() override;
  PrintableStream(const PrintableStream&) = delete;
  PrintableStream& operator=(const PrintableStream&) = delete;

 private:
  std::streamsize xsputn(const char* text, std::streamsize size) override;
  int overflow(int character) override;
  int sync() override { return target_->pubsync(); }

  std::ostream& stream_;
  std::streambuf* const target_;
};

}  // namespace tessera
