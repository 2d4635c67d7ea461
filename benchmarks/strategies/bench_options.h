#pragma once
// Command line of bench_strategies.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tessera/backends/parallel_config.h"
#include "tessera/comm/device_mesh.h"

namespace tessera::bench {

class Options {
 public:
  Options();
  // Takes the programs' names of flags, too; a switch needs no value. Throws
  // Error(kInvalidArgument) for flags it does not know.
  void parse(int argc, char** argv);

  const std::string& text(const std::string& key) const { return values_.at(key); }
  int64_t number(const std::string& key) const;
  bool flag(const std::string& key) const;
  std::vector<std::string> list(const std::string& key) const;

  MeshExtents mesh(int world_size) const;
  ParallelConfig parallel(const std::string& strategy) const;
  // What sets a row apart besides strategy, mesh and batch: "1f1b bf16 checkpointing ...".
  std::string variant() const;

 private:
  std::map<std::string, std::string> values_;
};

}  // namespace tessera::bench
