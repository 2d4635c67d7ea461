#pragma once
// The directories that make_fixtures.py wrote.
#include <string>
#include <vector>

#include "tessera/core/json.h"
#include "tessera/core/micro_batch.h"
#include "tessera/models/bloom.h"

namespace tessera::testing {

std::string fixture_path(const std::string& name);

struct Fixture {
  std::string directory;
  BloomConfig config;
  ModelSpec model;  // with the head of its architecture
};
Fixture load_fixture(const std::string& name);
Fixture load_fixture_at(const std::string& directory);

// The global batches of batches.safetensors, counts filled in.
std::vector<MicroBatch> fixture_batches(const Fixture& fixture);
Json expected_numbers(const Fixture& fixture);
std::vector<double> numbers(const Json& array);

}  // namespace tessera::testing
