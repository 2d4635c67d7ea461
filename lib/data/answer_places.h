// SPDX-License-Identifier: MIT
#pragma once
// Where the text of a chat holds an answer, by rendering the chat with other answers in its place.
#include <functional>
#include <optional>
#include <string>

#include "lib/data/jinja/value.h"
#include "tessera/data/chat_template.h"

namespace tessera {

using RenderChat =
    std::function<std::string(const jinja::Values& messages, bool add_generation_prompt)>;

// The answer of message `turn` in `whole`, the text of all messages: from the end of its generation
// prompt on, with what both the chat that ends there and the whole chat write behind it. Searched
// from `earliest` on. Nothing where the text does not depend on it.
std::optional<TextSpan> answer_place(const RenderChat& render, const jinja::Values& messages,
                                     size_t turn, const std::string& whole, size_t earliest);

// What both texts begin with, up to the end of a tag or a word where they go on otherwise.
std::string_view common_end(std::string_view text, std::string_view other);

}  // namespace tessera
