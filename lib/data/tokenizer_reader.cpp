// SPDX-License-Identifier: MIT
// Tokenizer::load: anything in tokenizer.json is either fully understood or rejected by name.
#include <charconv>
#include <filesystem>

#include "lib/core/folder_file.h"
#include "lib/data/tokenizer_parts.h"
#include "lib/data/tokenizer_tables.h"
#include "lib/data/unicode.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera {
namespace {

constexpr int64_t kMaxVocabulary = 1'000'000;
constexpr size_t kMaxAddedTokenBytes = 1024;

bool is_absent(const Json& parent, std::string_view key) { return !parent.find(key); }

// Throws unless the key is absent, null, false or an empty string.
void require_off(const Json& object, std::string_view key) {
  const auto found = object.find(key);
  if (!found || (found->is_bool() && !found->as_bool())) return;
  if (found->is_string() && found->as_string().empty()) return;
  found->fail("is not supported; only BPE without it is");
}

}  // namespace

class TokenizerReader {
 public:
  static Tokenizer read(const std::string& file) {
    TokenizerReader reader(file);
    reader.read_all();
    return Tokenizer(std::move(reader.tables_));
  }

 private:
  explicit TokenizerReader(const std::string& file)
      : file_(Json::parse_file(file)), tables_(std::make_shared<Tokenizer::Tables>()) {
    tables_->origin = file;
  }

  void read_all() {
    const Json model = file_.at("model");
    if (model.get("type", "BPE") != "BPE") {
      model.at("type").fail("only BPE tokenizers are supported, found " +
                            model.at("type").as_string());
    }
    for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
      require_off(model, key);
    }
    tables_->normalizer = read_normalizer(file_);
    tables_->byte_level = !merges_characters(file_);
    if (tables_->byte_level) {
      require_off(model, "byte_fallback");
      read_pre_tokenizer();
      read_decoder();
    } else {
      if (!model.get("byte_fallback", false)) model.fail("metaspaces need byte_fallback true");
      if (const auto part = file_.find("pre_tokenizer")) tables_->metaspace = read_metaspace(*part);
      tables_->strip_first_space = read_fallback_decoder(file_);
    }
    read_vocabulary(model.at("vocab"));
    read_merges(model);
    read_added_tokens();
    check_dense(model.at("vocab"));
    if (model.get("ignore_merges", false)) read_whole_pieces(model.at("vocab"));
    read_template();
    read_special_ids();
  }

  void read_pre_tokenizer() {
    const Json part = file_.at("pre_tokenizer");
    if (!part.is_object())
      part.fail("only byte-level BPE is supported, which needs a ByteLevel step");
    const std::vector<Json> steps = steps_of(part, "pretokenizers");
    if (steps.empty() || steps.size() > 2 || type_of(steps.back()) != "ByteLevel") {
      part.fail("expected ByteLevel, or Split followed by ByteLevel");
    }
    require_off(steps.back(), "add_prefix_space");
    const bool own_pattern = steps.back().get("use_regex", true);
    if (steps.size() == 1) {
      if (!own_pattern) steps[0].fail("ByteLevel without use_regex needs a Split before it");
      tables_->pre_tokenizer = PreTokenizer::kGpt2;
      return;
    }
    const Json& split = steps[0];
    if (type_of(split) != "Split") split.fail("expected Split, found " + type_of(split));
    if (own_pattern) steps[1].fail("Split followed by ByteLevel with use_regex is not supported");
    if (split.at("behavior").as_string() != "Isolated" || split.get("invert", false)) {
      split.fail("only Split with behavior Isolated, not inverted, is supported");
    }
    const Json pattern = split.at("pattern").at("Regex");
    const auto known = pre_tokenizer_for(pattern.as_string());
    if (!known) {
      pattern.fail(
          "not one of the patterns of BLOOM, GPT-2, Llama 3, Qwen and Mistral; others are not run");
    }
    tables_->pre_tokenizer = *known;
  }

  void read_decoder() {
    const auto decoder = file_.find("decoder");
    if (!decoder) return;
    for (const Json& step : steps_of(*decoder, "decoders")) {
      if (type_of(step) != "ByteLevel") step.fail("expected ByteLevel, found " + type_of(step));
    }
  }

  // Assigns the id to `content`; both must be new.
  void add_token(const Json& at, const std::string& content, int32_t id) {
    if (!tables_->ids.try_emplace(content, id).second) at.fail("this token appears twice");
    const auto index = static_cast<size_t>(id);
    if (index >= tables_->bytes.size()) {
      tables_->bytes.resize(index + 1);
      tables_->special.resize(index + 1, 0);
      tables_->is_byte.resize(index + 1, 0);
      used_.resize(index + 1, 0);
    }
    if (used_[index]++) at.fail(concat("the id ", id, " belongs to another token already"));
    std::string& bytes = tables_->bytes[index];
    if (tables_->byte_level) {
      if (!token_bytes(content, bytes)) bytes = content;
    } else if (const auto byte = fallback_byte(content)) {
      bytes.assign(1, *byte);
      tables_->is_byte[index] = 1;
    } else {
      bytes = content;
      for (size_t at = bytes.find(kMetaspace); at != bytes.npos; at = bytes.find(kMetaspace, at)) {
        bytes.replace(at, kMetaspace.size(), 1, ' ');
      }
    }
  }

  static std::string fallback_name(unsigned char byte) {
    constexpr const char* kDigits = "0123456789ABCDEF";
    return concat("<0x", kDigits[byte >> 4], kDigits[byte & 15], ">");
  }

  // Byte of a token such as <0x0A>.
  static std::optional<char> fallback_byte(const std::string& content) {
    if (content.size() != 6 || !content.starts_with("<0x") || content[5] != '>') return {};
    unsigned byte = 0;
    const auto [end, error] = std::from_chars(&content[3], &content[5], byte, 16);
    if (error != std::errc() || end != &content[5]) return {};
    return static_cast<char>(byte);
  }

  static int32_t id_of(const Json& value) {
    return static_cast<int32_t>(value.as_int64(0, kMaxVocabulary - 1));
  }

  void read_vocabulary(const Json& vocabulary) {
    const auto members = vocabulary.members();
    if (members.size() > kMaxVocabulary) {
      vocabulary.fail(concat(members.size(), " tokens, at most ", kMaxVocabulary, " are accepted"));
    }
    for (const auto& [content, id] : members) add_token(id, content, id_of(id));
  }

  int32_t vocabulary_id(const Json& at, const std::string& content) const {
    const auto found = tables_->ids.find(content);
    if (found == tables_->ids.end()) at.fail("\"" + content + "\" is not in the vocabulary");
    return found->second;
  }

  void read_merges(const Json& model) {
    std::array<int32_t, 256> byte_ids;
    for (size_t i = 0; i < 256; ++i) {
      const auto byte = static_cast<unsigned char>(i);
      std::string name;
      append_utf8(name, character_of_byte(byte));
      if (!tables_->byte_level) name = fallback_name(byte);
      byte_ids[i] = vocabulary_id(model.at("vocab"), name);
    }
    std::vector<Bpe::Merge> merges;
    for (const Json& merge : model.at("merges").items()) {
      std::string left, right;
      if (merge.is_string()) {
        const std::string both = merge.as_string();
        const size_t space = both.find(' ');
        if (space == both.npos || both.find(' ', space + 1) != both.npos) {
          merge.fail("expected two tokens with one space between them");
        }
        left = both.substr(0, space);
        right = both.substr(space + 1);
      } else {
        if (merge.size() != 2) merge.fail(concat("expected two tokens, found ", merge.size()));
        left = merge.at(0).as_string();
        right = merge.at(1).as_string();
      }
      if (left.empty() || right.empty()) merge.fail("a token of a merge is empty");
      merges.push_back({vocabulary_id(merge, left), vocabulary_id(merge, right),
                        vocabulary_id(merge, left + right)});
    }
    tables_->bpe = std::make_unique<Bpe>(byte_ids, merges, characters(model.at("vocab")));
  }

  // With metaspaces merging starts from characters that are tokens.
  absl::flat_hash_map<uint32_t, int32_t> characters(const Json& vocabulary) const {
    absl::flat_hash_map<uint32_t, int32_t> characters;
    if (tables_->byte_level) return characters;
    vocabulary_id(vocabulary, std::string(kMetaspace));
    for (const auto& [content, id] : tables_->ids) {
      if (content.empty()) continue;
      const CodePoint point = code_point_at(content, 0);
      if (point.length == content.size()) characters[point.code] = id;
    }
    return characters;
  }

  void read_added_tokens() {
    const auto list = file_.find("added_tokens");
    if (!list) return;
    for (const Json& entry : list->items()) {
      AddedToken token;
      token.id = id_of(entry.at("id"));
      token.content = entry.at("content").as_string();
      token.left_strip = entry.get("lstrip", false);
      token.right_strip = entry.get("rstrip", false);
      token.single_word = entry.get("single_word", false);
      token.normalized = entry.get("normalized", false);
      token.special = entry.get("special", false);
      if (token.content.empty() || token.content.size() > kMaxAddedTokenBytes) {
        entry.fail(concat("content must have 1 to ", kMaxAddedTokenBytes, " bytes"));
      }
      const auto known = tables_->ids.find(token.content);
      if (known == tables_->ids.end()) {
        add_token(entry, token.content, token.id);
      } else if (known->second != token.id) {
        entry.fail(concat("the id ", token.id, " differs from the vocabulary's ", known->second));
      }
      tables_->special[static_cast<size_t>(token.id)] = token.special;
      // Matched in normalised text, so the token is normalised too.
      if (token.normalized) {
        if (auto made = tables_->normalizer.apply(token.content, 0, token.content.size())) {
          token.content = std::move(made->text);
        }
      }
      if (token.content.empty()) entry.fail("the normalizer leaves nothing of this token");
      (token.normalized ? tables_->added_normalized : tables_->added).add(token);
    }
  }

  void check_dense(const Json& vocabulary) const {
    for (size_t id = 0; id < used_.size(); ++id) {
      if (!used_[id]) {
        vocabulary.fail(
            concat("no token has the id ", id, " although ids reach ", used_.size() - 1));
      }
    }
  }

  void read_whole_pieces(const Json& vocabulary) {
    std::string bytes;
    for (const auto& [content, id] : vocabulary.members()) {
      if (!tables_->byte_level) {
        tables_->whole_pieces[content] = id_of(id);
      } else if (token_bytes(content, bytes)) {
        tables_->whole_pieces[bytes] = id_of(id);
      }
    }
  }

  void read_template() {
    const auto part = file_.find("post_processor");
    if (!part) return;
    for (const Json& step : steps_of(*part, "processors")) {
      if (type_of(step) == "ByteLevel") continue;  // changes offsets only
      if (type_of(step) != "TemplateProcessing") {
        step.fail("expected ByteLevel or TemplateProcessing, found " + type_of(step));
      }
      bool after_text = false;
      for (const Json& item : step.at("single").items()) {
        if (item.contains("Sequence")) {
          if (after_text) item.fail("the text appears twice in the template");
          after_text = true;
          continue;
        }
        const std::string name = item.at("SpecialToken").at("id").as_string();
        auto& side = after_text ? tables_->suffix : tables_->prefix;
        for (const Json& id : step.at("special_tokens").at(name).at("ids").items()) {
          side.push_back(static_cast<int32_t>(id.as_int64(0, known_ids() - 1)));
        }
      }
      if (!after_text) step.fail("the template leaves the text out");
    }
  }

  int64_t known_ids() const { return static_cast<int64_t>(tables_->bytes.size()); }

  // Names in the tokenizer's own files override ids in the model's.
  void read_special_ids() {
    const std::filesystem::path folder = std::filesystem::path(tables_->origin).parent_path();
    const struct {
      const char* name;
      std::optional<int32_t>& id;
    } wanted[] = {{"bos_token", tables_->bos},
                  {"eos_token", tables_->eos},
                  {"pad_token", tables_->pad},
                  {"unk_token", tables_->unk}};
    for (const char* name : {"tokenizer_config.json", "special_tokens_map.json", "config.json"}) {
      const std::string path = file_in(folder, name);
      std::error_code ignored;
      if (!std::filesystem::exists(path, ignored)) continue;
      const Json file = Json::parse_file(path);
      const bool by_id = std::string_view(name) == "config.json";
      if (!by_id && tables_->byte_level) require_off(file, "add_prefix_space");
      for (const auto& [token, id] : wanted) {
        if (id) continue;
        const std::string key = by_id ? concat(token, "_id") : token;
        if (is_absent(file, key)) continue;
        Json value = file.at(key);
        if (by_id) {
          if (value.is_array() && value.size() > 0) value = value.at(0);
          id = static_cast<int32_t>(value.as_int64(0, known_ids() - 1));
        } else {
          if (value.is_object()) value = value.at("content");
          const auto found = tables_->ids.find(value.as_string());
          if (found == tables_->ids.end()) value.fail("this token is not in " + tables_->origin);
          id = found->second;
        }
      }
    }
  }

  Json file_;
  std::shared_ptr<Tokenizer::Tables> tables_;
  std::vector<char> used_;  // by id
};

Tokenizer Tokenizer::load(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) return TokenizerReader::read(path);
  const std::string file = file_in(path, "tokenizer.json");
  check(std::filesystem::exists(file, ignored), ErrorCode::kDataLoss, file,
        ": not found; a tokenizer directory needs tokenizer.json (transformers' save_pretrained "
        "writes it)");
  return TokenizerReader::read(file);
}

}  // namespace tessera
