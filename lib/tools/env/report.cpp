// SPDX-License-Identifier: MIT
#include "lib/tools/env/report.h"

#include <iomanip>
#include <ostream>
#include <utility>

#include "lib/run/output.h"
#include "lib/settings/flags.h"
#include "lib/settings/tool.h"
#include "lib/tools/env/bandwidth.h"
#include "lib/tools/env/environment.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera::programs {
namespace {

struct Section {
  std::string title;
  std::vector<std::pair<std::string, std::string>> lines;
};

std::string gigabytes(int64_t bytes) {
  return concat(std::fixed, std::setprecision(1), static_cast<double>(bytes) / (1 << 30), " GiB");
}
std::string limit(const std::optional<int64_t>& value, const char* unit) {
  return value ? concat(*value, unit) : "unlimited";
}

Section versions() {
  metrics::RunStartRecord r;
  fill_versions(r);
  return {"versions",
          {{"tessera", concat(r.tessera_version, " ", r.git_sha)},
           {"LibTorch", r.torch_version},
           {"CUDA toolkit", r.cuda_version.empty() ? "none" : r.cuda_version},
           {"driver", r.driver_version.empty() ? "none" : r.driver_version},
           {"compiler", __VERSION__}}};
}

Section host_section(const HostFacts& host) {
  return {"host",
          {{"system", host.kernel},
           {"processor", host.cpu},
           {"cores", concat(host.cores, " for this process, ", host.numa_nodes, " NUMA node(s)")},
           {"memory", concat(gigabytes(host.memory_bytes), ", ", gigabytes(host.available_bytes),
                             " free for this process")},
           {"locked memory", limit(host.locked_limit_bytes, " bytes")},
           {"open files", limit(host.open_files_limit, "")},
           {"/dev/shm", concat(gigabytes(host.shm_bytes), " free")}}};
}

Section gpu_section(const HostFacts& host) {
  Section section{"GPUs", {}};
  for (size_t i = 0; i < host.gpus.size(); ++i) {
    const GpuFacts& gpu = host.gpus[i];
    std::string text = gpu.name;
    if (gpu.total_bytes > 0) text += ", " + gigabytes(gpu.total_bytes);
    text += concat(", ", gigabytes(gpu.used_bytes), " in use");
    if (gpu.sm_mhz && gpu.most_mhz)
      text += concat(", ", *gpu.sm_mhz, " of ", *gpu.most_mhz, " MHz");
    if (gpu.nvlinks > 0) text += concat(", ", gpu.nvlinks, " NVLinks");
    section.lines.emplace_back(concat("GPU ", i), text);
    for (size_t j = i + 1; j < gpu.paths.size(); ++j) {
      section.lines.emplace_back(concat("GPU ", i, " - ", j),
                                 gpu.paths[j].empty() ? "unknown" : gpu.paths[j]);
    }
  }
  if (section.lines.empty()) section.lines.emplace_back("none", "");
  return section;
}

Section job_section(const HostFacts& host) {
  Section section{"ranks", {}};
  const LaunchInfo& launch = host.launch;
  section.lines.emplace_back(
      "launcher", concat(launch.launcher, ", rank ", launch.rank, " of ", launch.world_size, ", ",
                         launch.local_size, " on this host"));
  for (const TransportInfo& transport : host.transports) {
    const std::string& why = transport.unusable_because;
    std::string text = why.empty() ? "usable" : "not here: " + why;
    if (!transport.library.empty()) text = transport.library + ", " + text;
    section.lines.emplace_back(transport.name, text);
  }
  for (const auto& [name, value] : host.variables) section.lines.emplace_back(name, value);
  return section;
}

Section bandwidth_section(const std::string& directory, double seconds) {
  Section section{"bandwidth", {}};
  for (const Bandwidth& one : measure_bandwidths(directory, seconds)) {
    section.lines.emplace_back(
        one.what, concat(std::fixed, std::setprecision(1), one.bytes_per_s / 1e9, " GB/s"));
  }
  return section;
}

void print(const std::vector<Section>& sections, const std::vector<std::string>& warnings,
           std::ostream& out) {
  for (const Section& section : sections) {
    out << section.title << "\n";
    for (const auto& [name, value] : section.lines) {
      out << "  " << std::left << std::setw(20) << name << "  " << value << "\n";
    }
  }
  for (const std::string& warning : warnings) out << "warning: " << warning << "\n";
  if (warnings.empty()) out << "nothing to warn of\n";
}

std::string json_of(const std::vector<Section>& sections,
                    const std::vector<std::string>& warnings) {
  JsonWriter json(2);
  json.begin_object();
  for (const Section& section : sections) {
    json.key(section.title).begin_object();
    for (const auto& [name, value] : section.lines) json.field(name, value);
    json.end_object();
  }
  json.field("warnings", warnings);
  return json.end_object().text();
}

}  // namespace

int run_env(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
  return run_tool("tessera-env", out, err, [&] {
    FlagSet flags("tessera-env", "Says what a host is, how fast, and what about it may hurt.");
    bool measure = true, as_json = false;
    double seconds = 1;
    std::string directory;
    flags.add("measure", &measure, "measure bandwidths, some seconds");
    flags.add("seconds", &seconds, "for each kind of transfer, about");
    flags.add("directory", &directory, "measure writing a file there, too");
    flags.add("json", &as_json, "one JSON object instead of lines");
    flags.parse(arguments);
    if (flags.help_requested() || flags.print_config_requested()) {
      out << (flags.help_requested() ? flags.help() : flags.config_json() + "\n");
      return 0;
    }
    check(seconds > 0 && seconds <= 60, ErrorCode::kInvalidArgument, "--seconds is ", seconds,
          "; give more than 0 and at most 60");
    const HostFacts host = read_host();
    if (host.launch.local_rank != 0) return 0;  // one rank per host prints
    std::vector<Section> sections{versions(), host_section(host), gpu_section(host),
                                  job_section(host)};
    if (measure) sections.push_back(bandwidth_section(directory, seconds));
    const auto warnings = warnings_of(host);
    if (as_json) {
      out << json_of(sections, warnings) << "\n";
    } else {
      print(sections, warnings, out);
    }
    return 0;
  });
}

}  // namespace tessera::programs
