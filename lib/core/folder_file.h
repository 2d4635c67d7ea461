// SPDX-License-Identifier: MIT
#pragma once
// Files of an untrusted folder: a link in it must not make a program read or publish files
// elsewhere.
#include <string>

namespace tessera {

// The target outside the folder that its file `path` links to; "" for none, or a missing file.
// Links into the blobs of the Hub's cache are allowed in one of its snapshots. The folder itself
// may be a link.
std::string leads_out_of(const std::string& folder, const std::string& path);

// folder/name. Throws Error(kDataLoss) with the target of a link out of the folder.
std::string file_in(const std::string& folder, const std::string& name);

}  // namespace tessera
