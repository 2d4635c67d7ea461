// SPDX-License-Identifier: MIT
#pragma once
// Files of a folder that may come from a stranger: a link in it must not make a program read, or
// publish, what lies elsewhere.
#include <string>

namespace tessera {

// Where path, a file of the folder, leads instead of staying in the folder; "": it stays, or does
// not exist. Links into the blobs of the Hub's cache stay where the folder is a snapshot of it. The
// folder itself may be a link.
std::string leads_out_of(const std::string& folder, const std::string& path);

// folder/name. Throws Error(kDataLoss) with its target when it is a link out of the folder.
std::string file_in(const std::string& folder, const std::string& name);

}  // namespace tessera
