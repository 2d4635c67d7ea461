// SPDX-License-Identifier: MIT
#pragma once
// The programs that rows consist of, as child processes, each run once: what ended is written down
// in the output directory and taken from there when the comparison is called again.
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace tessera::programs {

struct ChildResult {
  int exit_code = 0;  // 128 + n when signal n ended it
  double wall_s = 0;
  std::string message;      // the last line of its log that reports an error
  bool taken_over = false;  // from an earlier call
};

class Children {
 public:
  // Reads what earlier calls have written down. Throws Error(kDataLoss) when the directory cannot
  // be written.
  explicit Children(std::string directory);

  // Runs the program and waits for its end, calling `tick` some ten times a second; its output goes
  // to logs/<name>.log. A child of the same command, environment and `inputs` (what else its result
  // depends on), made by the same bytes of `program`, is not run again when it ended well or out of
  // memory. environment wins over our own, less the variables of launchers unless
  // `keep_launcher`.
  struct Request {
    std::string name;
    std::vector<std::string> command;
    std::string program;              // of the command, by its path
    std::vector<std::string> output;  // flags that say where it writes, no part of its key
    std::string inputs;
    std::string result = {};  // without this path a run that ended well runs again; "": never
    std::map<std::string, std::string> environment;
    bool keep_launcher = false;
    bool torchrun = false;  // it starts the command; the exit code is that of its first failed rank
  };
  ChildResult run(const Request& request, const std::function<void()>& tick);

 private:
  std::string key_of(const Request& request);
  void write_down(const std::string& key, const Request& request, const ChildResult& result);

  std::string directory_;
  struct Done {
    std::string key;
    ChildResult result;
  };
  std::map<std::string, Done> done_;             // by name
  std::map<std::string, std::string> versions_;  // of programs, by path
};

// By its exit code, or killed, which is how the kernel ends a process when memory runs out.
bool is_out_of_memory(const ChildResult& result);

// The folder of the running program.
std::string program_folder();
// Path of a program in PATH; "" when there is none.
std::string find_in_path(const std::string& name);

}  // namespace tessera::programs
