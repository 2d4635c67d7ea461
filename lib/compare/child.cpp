// SPDX-License-Identifier: MIT
#include "lib/compare/child.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "lib/compare/launchers.h"
#include "lib/core/clock.h"
#include "lib/core/file.h"
#include "lib/core/hash.h"
#include "lib/run/child_process.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

extern char** environ;

namespace tessera::programs {
namespace {

namespace fs = std::filesystem;

constexpr auto kBetween = std::chrono::milliseconds(20);
constexpr int kOutOfMemory = 3, kKilled = 137;

std::string last_error_line(const std::string& log_path) {
  std::ifstream in(log_path);
  std::string last, error;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("error") || line.starts_with("E ")) error = line;
    // Skips torchrun's separator lines.
    if (line.find_first_not_of("=-") != std::string::npos) last = line;
  }
  return error.empty() ? last : error;
}

std::map<std::string, std::string> all_variables() {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equal = text.find('=');
    if (equal != std::string::npos)
      variables.emplace(text.substr(0, equal), text.substr(equal + 1));
  }
  return variables;
}

}  // namespace

Children::Children(std::string directory) : directory_(std::move(directory)) {
  std::error_code error;
  fs::create_directories(directory_ + "/logs", error);
  check(!error, ErrorCode::kDataLoss, "--output_dir ", directory_, ": ", error.message());
  const std::string path = directory_ + "/done.jsonl";
  if (!fs::exists(path)) {
    // Written even if a later part fails, so that the rest can be resumed.
    std::ofstream(path).flush();
    return;
  }
  const std::string text = read_file(path);
  const size_t whole = text.rfind('\n') + 1;  // drops a line that was cut off
  fs::resize_file(path, whole);
  std::istringstream in(text.substr(0, whole));
  for (std::string line; std::getline(in, line);) {
    const Json entry = Json::parse(line, {}, path);
    done_[entry.at("name").as_string()] = {
        .key = entry.at("key").as_string(),
        .result = {.exit_code = static_cast<int>(entry.at("exit_code").as_int64()),
                   .wall_s = entry.at("wall_s").as_double(),
                   .message = entry.get("message", ""),
                   .taken_over = true}};
  }
}

ChildResult Children::run(const Request& request, const std::function<void()>& tick) {
  const std::string key = key_of(request);
  if (const auto found = done_.find(request.name); found != done_.end()) {
    const bool is_there =
        request.result.empty() || found->second.result.exit_code != 0 || fs::exists(request.result);
    if (found->second.key == key && is_there) return found->second.result;
    write_down("", request, {});  // the folder's content is overwritten from here on
  }
  const std::string log = directory_ + "/logs/" + request.name + ".log";
  fs::remove(log);
  std::map<std::string, std::string> environment =
      request.keep_launcher ? all_variables() : environment_without_launcher();
  for (const auto& [name, value] : request.environment) environment[name] = value;
  std::vector<std::string> command = request.command;
  command.insert(command.end(), request.output.begin(), request.output.end());
  const double begin = now_s();
  // SIGTERM for torchrun, whose ranks have sessions of their own and would survive its SIGKILL.
  ChildProcess child(command, environment, log, request.torchrun ? SIGTERM : SIGKILL);
  while (!child.status()) {
    tick();
    std::this_thread::sleep_for(kBetween);
  }
  ChildResult result{.exit_code = *child.status(), .wall_s = now_s() - begin};
  if (result.exit_code != 0 && request.torchrun) {
    result.exit_code = exit_code_of_torchrun(read_file(log)).value_or(result.exit_code);
  }
  if (result.exit_code != 0) result.message = last_error_line(log);
  // Failures are retried at the next call; running out of memory is a result.
  if (result.exit_code == 0 || is_out_of_memory(result)) write_down(key, request, result);
  return result;
}

std::string Children::key_of(const Request& request) {
  std::string& version = versions_[request.program];
  if (version.empty()) version = sha256_file_hex(request.program);
  JsonWriter text;
  text.begin_array().value(request.name).value(version).value(request.inputs);
  for (const auto& [name, value] : request.environment) text.value(name + "=" + value);
  text.value(request.command).end_array();
  return xxh3_128(text.text().data(), text.text().size()).hex();
}

void Children::write_down(const std::string& key, const Request& request,
                          const ChildResult& result) {
  JsonWriter line;
  line.begin_object().field("key", key).field("name", request.name);
  line.field("command", request.command).field("program_sha256", versions_[request.program]);
  line.field("exit_code", result.exit_code).field("wall_s", result.wall_s);
  line.field("message", result.message).end_object();
  const std::string path = directory_ + "/done.jsonl";
  std::ofstream out(path, std::ios::app);
  out << line.text() << "\n" << std::flush;
  check(out.good(), ErrorCode::kDataLoss, path, ": cannot be written; check the free space");
  done_[request.name] = {key, result};
}

bool is_out_of_memory(const ChildResult& result) {
  return result.exit_code == kOutOfMemory || result.exit_code == kKilled;
}

std::string program_folder() { return fs::read_symlink("/proc/self/exe").parent_path().string(); }

std::string find_in_path(const std::string& name) {
  std::istringstream folders(std::getenv("PATH") ? std::getenv("PATH") : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string path = folder + "/" + name;
    if (access(path.c_str(), X_OK) == 0) return path;
  }
  return "";
}

}  // namespace tessera::programs
