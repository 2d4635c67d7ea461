// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// BPE tokenizers of Hugging Face directories: byte-level ones (BLOOM, GPT-2, Llama 3) and those
/// with metaspaces and byte fallback (Llama 2, Mistral, CodeLlama).
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// One token and its bytes.
struct Token {
  int32_t id;         ///< the token's id, 0 .. size()-1
  size_t begin, end;  ///< bytes of the text that it covers; empty for tokens of the template
  bool operator==(const Token&) const = default;  ///< compares all members
};

/// BPE tokenizer with the ids of Hugging Face's `tokenizers` for every valid UTF-8 text. Immutable;
/// copies share tables, and threads may share one.
class Tokenizer {
 public:
  /// Loads tokenizer.json, from its directory or by its path. Special tokens come from
  /// tokenizer_config.json, special_tokens_map.json or config.json beside it. Throws
  /// Error(kDataLoss) with file and place for malformed files and unsupported tokenizers.
  static Tokenizer load(const std::string& path);

  /// Token ids of the text. add_special_tokens applies the tokenizer's template, the default in
  /// Hugging Face (Llama 3 prepends its first token). Throws Error(kDataLoss) with the byte offset
  /// for invalid UTF-8.
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens = true) const;
  /// Ids of encode(), with the bytes of the text that each token covers.
  std::vector<Token> encode_with_offsets(std::string_view text,
                                         bool add_special_tokens = true) const;

  /// Text of the ids; invalid UTF-8 becomes U+FFFD. Throws Error(kDataLoss) for an id outside the
  /// vocabulary.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = false) const;

  int64_t size() const;  ///< ids are 0 .. size()-1
  ///@{
  /// The special token's id; nothing if the tokenizer's files name none.
  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;
  std::optional<int32_t> pad_id() const;
  std::optional<int32_t> unk_id() const;
  ///@}
  const std::string& origin() const;  ///< the path of tokenizer.json
  /// Whether cutting a text between a line feed and an ASCII letter or digit keeps its tokens, if a
  /// letter, digit or punctuation stands before the line feed.
  bool cuts_at_lines() const;

 private:
  friend class TokenizerReader;
  struct Tables;
  class Encoder;
  explicit Tokenizer(std::shared_ptr<const Tables> tables) : tables_(std::move(tables)) {}
  std::shared_ptr<const Tables> tables_;
};

}  // namespace tessera
