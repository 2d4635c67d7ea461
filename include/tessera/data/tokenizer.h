// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// BPE tokenizers of Hugging Face directories: text to ids and back. Byte-level ones (BLOOM, GPT-2,
/// Llama 3) and those with metaspaces and byte fallback (Llama 2, Mistral, CodeLlama).
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// One token and where it comes from.
struct Token {
  int32_t id;         ///< the token's id, 0 .. size()-1
  size_t begin, end;  ///< the bytes of the text it covers; empty for tokens a template adds
  bool operator==(const Token&) const = default;  ///< compares all members
};

/// Ids equal those of Hugging Face's `tokenizers` for every valid UTF-8 text. Immutable: a copy
/// shares its tables and threads may use one tokenizer together.
class Tokenizer {
 public:
  /// From a directory with tokenizer.json (special tokens from tokenizer_config.json,
  /// special_tokens_map.json or config.json beside it), or from such a file. Throws
  /// Error(kDataLoss) with file and place for anything malformed, and for kinds of tokenizer that
  /// are not supported.
  static Tokenizer load(const std::string& path);

  /// Throws Error(kDataLoss) with the byte offset when the text is not valid UTF-8. With
  /// add_special_tokens the tokenizer's own template applies, as it does by default in Hugging Face
  /// (Llama 3 puts its first token in front).
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens = true) const;
  /// As encode(), with the bytes of the text that each token covers.
  std::vector<Token> encode_with_offsets(std::string_view text,
                                         bool add_special_tokens = true) const;

  /// Bytes that are not valid UTF-8 become U+FFFD. Throws Error(kDataLoss) for an id outside the
  /// vocabulary.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = false) const;

  int64_t size() const;  ///< ids are 0 .. size()-1
  ///@{
  /// The special token's id; nothing where the tokenizer's files name none.
  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;
  std::optional<int32_t> pad_id() const;
  std::optional<int32_t> unk_id() const;
  ///@}
  const std::string& origin() const;  ///< the path of tokenizer.json
  /// Whether a text cut between a line feed and a letter or digit of ASCII, where another one or
  /// punctuation stands before the line feed, has the tokens of the whole text.
  bool cuts_at_lines() const;

 private:
  friend class TokenizerReader;
  struct Tables;
  class Encoder;
  explicit Tokenizer(std::shared_ptr<const Tables> tables) : tables_(std::move(tables)) {}
  std::shared_ptr<const Tables> tables_;
};

}  // namespace tessera
