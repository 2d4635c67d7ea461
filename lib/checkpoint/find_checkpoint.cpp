// SPDX-License-Identifier: MIT
#include "lib/checkpoint/agreement.h"
#include "lib/checkpoint/checkpoint_directory.h"
#include "lib/core/file.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera {

FoundCheckpoint find_checkpoint(const std::string& directory, std::optional<int64_t> before) {
  FoundCheckpoint found;
  for (const NamedCheckpoint& named : named_checkpoints(directory)) {
    if (before && named.step >= *before) continue;
    if (named.unfinished) {
      found.skipped.push_back(named.path + ": was not finished");
      continue;
    }
    try {
      found.path = Checkpoint(named.path).path();
      return found;
    } catch (const Error& error) {
      found.skipped.emplace_back(error.what());
    }
  }
  return found;
}

FoundCheckpoint find_checkpoint(Communicator& world, const std::string& directory,
                                std::optional<int64_t> before) {
  CommunicatorChannel ranks(world);
  const std::string answer = rank_0_does(ranks, [&] {
    FoundCheckpoint found = find_checkpoint(directory, before);
    for (std::string& text : found.skipped) text = utf8_text(std::move(text));
    JsonWriter out;
    out.begin_object().field("path", found.path).field("skipped", found.skipped);
    return out.end_object().text();
  });
  const Json json = Json::parse(answer, {}, "rank 0");
  FoundCheckpoint found{json.at("path").as_string(), {}};
  for (const Json& text : json.at("skipped").items()) found.skipped.push_back(text.as_string());
  return found;
}

}  // namespace tessera
