// SPDX-License-Identifier: MIT
#pragma once
// Safe output of data to a terminal.
#include <ostream>
#include <streambuf>
#include <string>
#include <string_view>

namespace tessera {

// Colours of trained tokens.
inline constexpr std::string_view kGreenText = "\033[32m", kPlainText = "\033[0m";

// Escapes control characters and those that change the text direction, as "\x1b" and "\u202e". Line
// ends and tabs stay.
std::string printable(std::string_view text);
// As printable(), except kGreenText and kPlainText, which stay.
std::string printable_with_colours(std::string_view text);

// While it lives, output to the stream is made printable.
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
