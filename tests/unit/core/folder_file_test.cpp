// SPDX-License-Identifier: MIT
#include "lib/core/folder_file.h"

#include "tests/support/messages.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
namespace fs = std::filesystem;

TEST_CASE("a link stays in its folder, leads into the blobs of the Hub's cache, or is refused") {
  const TempDir place;
  fs::create_directories(place.path("model/more"));
  fs::create_directories(place.path("model-2"));
  const std::string folder = place.path("model"), secret = place.write("model-2/secret", "x");
  place.write("model/file", "x");
  place.write("model/more/one", "x");
  const auto link = [&](const fs::path& target, const std::string& name) {
    fs::create_symlink(target, place.path(name));
    return place.path(name);
  };
  CHECK(leads_out_of(folder, folder + "/file").empty());
  CHECK(leads_out_of(folder, folder + "/absent").empty());
  CHECK(leads_out_of(folder, link("file", "model/inner")).empty());
  CHECK(leads_out_of(folder, link("more/one", "model/below")).empty());
  CHECK(leads_out_of(link("model", "linked"), place.path("linked/file")).empty());

  CHECK(leads_out_of(folder, link("../model-2/secret", "model/outer")) == fs::canonical(secret));
  CHECK(leads_out_of(folder, link("outer", "model/twice")) == fs::canonical(secret));
  CHECK(leads_out_of(folder, link("/proc/self/environ", "model/environment")) != "");
  link("../model-2", "model/folder");
  CHECK(leads_out_of(folder, folder + "/folder/secret") == fs::canonical(secret));
  CHECK(file_in(folder, "file") == folder + "/file");
  CHECK(error_of(ErrorCode::kDataLoss, [&] {
          file_in(folder, "outer");
        }).starts_with(folder + "/outer: is a link out of the folder, to "));

  fs::create_directories(place.path("hub/blobs"));
  fs::create_directories(place.path("hub/snapshots/0123/more"));
  fs::create_directories(place.path("hub/refs"));
  place.write("hub/blobs/aaaa", "x");
  place.write("hub/refs/main", "x");
  const std::string snapshot = place.path("hub/snapshots/0123");
  CHECK(leads_out_of(snapshot, link("../../blobs/aaaa", "hub/snapshots/0123/file")).empty());
  link("../../../blobs/aaaa", "hub/snapshots/0123/more/file");
  CHECK(leads_out_of(snapshot, snapshot + "/more/file").empty());
  CHECK(leads_out_of(snapshot + "/more", snapshot + "/more/file").empty());
  CHECK(leads_out_of(snapshot, link("../../refs/main", "hub/snapshots/0123/ref")) != "");
  CHECK(leads_out_of(folder, link("../hub/blobs/aaaa", "model/blob")) != "");
}
