// SPDX-License-Identifier: MIT
// Verdict of tessera-report, and the page of a running run.
#include <algorithm>
#include <fstream>
#include <regex>
#include <sstream>
#include <thread>

#include "lib/report/figures.h"
#include "lib/report/page.h"
#include "lib/report/read_runs.h"
#include "lib/report/report.h"
#include "lib/report/verdict.h"
#include "tessera/core/error.h"
#include "tests/programs/report_runs.h"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::report;
using namespace tessera::test;

namespace {

const Figure& figure_of(const std::vector<Figure>& figures, const std::string& id) {
  const auto found = std::ranges::find_if(figures, [&](const Figure& f) { return f.id == id; });
  REQUIRE(found != figures.end());
  return *found;
}

std::string text_of(const std::vector<VerdictLine>& lines, const std::string& title) {
  for (const VerdictLine& one : lines) {
    if (one.title == title) return one.text;
  }
  return "";
}

// Three runs of the same work, and one of other work.
void write_compared(const TempDir& folder) {
  const auto write = [&](const char* name, const char* strategy, double time, int64_t mib,
                         double loss) {
    MadeRun made;
    made.options.parallel.strategy = strategy;
    made.step_time_s = time;
    made.gpu_bytes = mib << 20;
    made.loss = loss;
    made.write(folder.path(name));
  };
  write("ddp", "ddp", 0.1, 400, 2);
  write("zero2", "zero2", 0.05, 300, 2);
  write("zero3", "zero3", 0.2, 100, 2 * (1 + 1e-6));
  MadeRun other;
  other.options.parallel.strategy = "fsdp";
  other.step_time_s = 0.01;
  other.gpu_bytes = int64_t{10} << 20;
  other.start.parameter_dtype = "bf16";
  other.write(folder.path("other"));
}

}  // namespace

TEST_CASE(
    "report page: the verdict names the fastest, the smallest, and whether numbers are equal") {
  const TempDir folder;
  write_compared(folder);
  const Study study(read_runs({folder.path(".")}), "ddp");
  const std::vector<VerdictLine> lines = verdict(study);
  CHECK(text_of(lines, "Fastest") ==
        "zero2: 20,000 tokens/s (median), 2.000 times the rate of ddp");
  CHECK(text_of(lines, "Least memory") ==
        "zero3: 100 MiB allocated on a GPU at its peak, 0.2500 times the peak of ddp");
  CHECK(text_of(lines, "Equal numbers") ==
        "the losses of all steps differ from those of ddp by at most 1.0e-06 (zero3)");
  CHECK(text_of(lines, "Left out here") == "other, which did other work than ddp");
  CHECK(text_of(lines, "Did not finish").empty());
  const std::string html = to_html(study, make_figures(study), make_tables(study));
  CHECK(html.find("<dt>Fastest</dt>") < html.find("<section id=\"loss\">"));
  // One line of links, each to an existing part.
  const size_t begin = html.find("<nav"), end = html.find("</nav>");
  CHECK(html.substr(begin, end - begin).find('\n') == std::string::npos);
  const std::regex link("<a href=\"#([^\"]+)\"");
  for (std::sregex_iterator
           i(html.begin() + static_cast<long>(begin), html.begin() + static_cast<long>(end), link),
       last;
       i != last; ++i) {
    INFO((*i)[1]);
    CHECK(has(html, concat("<section id=\"", std::string((*i)[1]), "\">")));
  }
}

TEST_CASE("report page: nothing is the fastest where rates differ by less than they vary") {
  // Step times of 0.1 and 0.1 x `ratio`, each with this growth over its ten steps.
  const auto fastest = [](double ratio, double growth, const std::string& baseline) {
    const TempDir folder;
    const auto write = [&](const char* name, double time) {
      MadeRun made;
      made.options.parallel.strategy = name;
      made.step_time_s = time;
      made.step_time_growth_s = growth * time;
      made.write(folder.path(name));
    };
    write("ddp", 0.1);
    write("zero2", 0.1 * ratio);
    write("zero3", 0.4);
    return text_of(verdict(Study(read_runs({folder.path(".")}), baseline)), "Fastest");
  };
  CHECK(has(fastest(0.9, 0, "ddp"), "zero2: "));
  CHECK(has(fastest(0.9, 1e-3, "ddp"), "zero2: "));
  const std::string alike = fastest(0.98, 0.02, "ddp");
  CHECK(has(alike, "no difference between zero2 and ddp: medians of "));
  CHECK(has(alike, " lie within their standard deviation, "));
  CHECK_FALSE(has(alike, "zero3"));
  CHECK(has(fastest(0.98, 0.02, "zero3"), " times the rate of zero3"));
  CHECK(has(fastest(1, 0, "ddp"), "no difference between ddp and zero2: a median of 10,000"));
}

TEST_CASE("report page: memory on a CPU is that of tensors, as the plot has it") {
  const TempDir folder;
  const auto write = [&](const char* name, int64_t tensors, int64_t resident) {
    MadeRun made;
    made.options.parallel.strategy = name;
    made.cpu_bytes = resident << 20;
    made.end = {{"parameter_bytes", tensors << 20},
                {"gradient_bytes", tensors << 20},
                {"optimizer_bytes", int64_t{0}},
                {"host_bytes", int64_t{1} << 20}};
    made.write(folder.path(name));
  };
  write("ddp", 10, 400);
  write("zero2", 4, 900);  // two processes use more of everything except tensors
  CHECK(text_of(verdict(Study(read_runs({folder.path(".")}), "ddp")), "Least memory") ==
        "zero2: 9.000 MiB of tensors on the rank that holds most, 0.4286 times those of ddp");
}

TEST_CASE("report page: without their tensors runs are set beside each other by what is resident") {
  const TempDir folder;
  for (const auto& [name, mib] : {std::pair("ddp", 400), {"zero2", 300}}) {
    MadeRun made;
    made.options.parallel.strategy = name;
    made.cpu_bytes = int64_t{mib} << 20;
    made.write(folder.path(name));
  }
  CHECK(text_of(verdict(Study(read_runs({folder.path(".")}), "ddp")), "Least memory") ==
        "zero2: 300 MiB resident in its processes at the peak, 0.7500 times the peak of ddp");
}

TEST_CASE("report page: the verdict takes over what a comparison found, and says what failed") {
  const TempDir folder;
  for (const char* name : {"single", "zero2", "zero3"}) {
    MadeRun made;
    made.options.parallel.strategy = name;
    made.exit_code = name == std::string("zero3") ? 3 : 0;
    made.write(folder.path(name));
  }
  const auto found = [&](const char* verdict_of_zero2) {
    folder.write("comparison.csv",
                 concat("row,loss_difference_ratio,parameter_difference_ratio,worst_parameter,"
                        "exit_code,verdict\nsingle,,,,0,reference\nzero2,1e-7,2e-6,h,0,",
                        verdict_of_zero2, "\nzero3,,,,3,out of memory\n"));
    const Study study(read_runs({folder.path(".")}), "");
    return verdict(study);
  };
  CHECK(has(text_of(found("PASS"), "Equal numbers"), "yes: zero2 agrees with single; largest"));
  CHECK(has(text_of(found("PASS"), "Equal numbers"), "of the parameters 2.0e-06 (zero2)"));
  CHECK(has(text_of(found("FAIL"), "Equal numbers"), "no: zero2 (loss 1.0e-07"));
  CHECK(has(text_of(found("PASS"), "Did not finish"), "zero3 (out of memory)"));
}

TEST_CASE("report page: of one run the verdict says where a step's time goes") {
  const TempDir folder;
  MadeRun made;
  made.step_time_s = 0.2;
  made.write(folder.path("plain"));
  CHECK(text_of(verdict(Study(read_runs({folder.path("plain")}), "")), "Step").empty());
  made.backward_s = 0.05;
  made.comm_exposed_s = 0.14;
  made.write(folder.path("waits"));
  CHECK(text_of(verdict(Study(read_runs({folder.path("waits")}), "")), "Step") ==
        "200.0 ms in the mean: waiting for communication 70 %, backward 25 %");
}

TEST_CASE("report page: curves that cannot be told apart are said in a sentence") {
  const std::vector<double> x{1, 2, 3}, y{3, 2, 1};
  CHECK(identical_curves({{"a", x, y}, {"b", x, y}, {"c", x, {3, 2, 1.5}}}) ==
        "a and b lie on each other (equal bit for bit).");
  CHECK(has(identical_curves({{"a", x, y}, {"b", x, {3, 2, 1 + 1e-7}}}),
            "largest relative difference 1.0e-07"));
  CHECK(identical_curves({{"a", x, y}, {"b", {1, 2}, {3, 2}}}).empty());
  const TempDir folder;
  write_compared(folder);
  const Study study(read_runs({folder.path(".")}), "");
  CHECK(has(figure_of(make_figures(study), "loss").about, "ddp"));
  CHECK(has(figure_of(make_figures(study), "loss").about, "lie on each other"));
}

TEST_CASE("report page: memory is in MiB throughout") {
  const TempDir folder;
  write_compared(folder);
  const Study study(read_runs({folder.path(".")}), "");
  const std::string html = to_html(study, make_figures(study), make_tables(study));
  for (const char* unit : {" MB", " GB", " GiB", " KiB"}) CHECK_FALSE(has(html, unit));
  CHECK(has(html, "MiB"));
}

TEST_CASE(
    "report --watch writes the page of a run until it ends, and the page loads itself again") {
  const TempDir folder;
  MadeRun made;
  made.ends = false;
  made.steps = 4;
  const std::string run = folder.path("run"), page = run + "/report.html";
  std::ostringstream out, err;
  int code = -1;
  std::thread watching([&] { code = run_report({run, "--watch"}, out, err); });
  const auto read = [&] {
    std::ifstream in(page);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  const auto wait_for = [&](const std::string& part) {
    for (int i = 0; i < 300; ++i) {
      if (has(read(), part)) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    return false;
  };
  made.write(run);  // after the watch has started
  CHECK(wait_for("not finished: step 4 of 10"));
  CHECK(has(read(), "http-equiv=\"refresh\""));
  made.first_step = 5;
  made.steps = 6;
  made.ends = true;
  made.restored_from = "checkpoint-4";
  made.write(run);
  watching.join();
  CHECK(code == 0);
  CHECK(has(out.str(), "open file://"));
  CHECK(has(out.str(), "run/report.html; it loads itself again"));
  CHECK(has(read(), "finished: step 10 of 10"));
  CHECK_FALSE(has(read(), "http-equiv=\"refresh\""));
}
