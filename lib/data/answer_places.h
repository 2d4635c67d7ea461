// SPDX-License-Identifier: MIT
#pragma once
// Finds an answer in a chat's text by rendering the chat with other answers.
#include <functional>
#include <optional>
#include <string>

#include "lib/data/jinja/value.h"
#include "tessera/data/chat_template.h"

namespace tessera {

using RenderChat =
    std::function<std::string(const jinja::Values& messages, bool add_generation_prompt)>;

// Span of message `turn`'s answer in `whole`, the text of all messages. It begins after the
// generation prompt, and ends with the text that both the chat up to there and the whole chat
// append. Searched from `earliest` on. Empty if the text does not depend on the answer.
std::optional<TextSpan> answer_place(const RenderChat& render, const jinja::Values& messages,
                                     size_t turn, const std::string& whole, size_t earliest);

// Common end of both texts, from the end of a tag or word on if they differ before it.
std::string_view common_end(std::string_view text, std::string_view other);

}  // namespace tessera
