#include "tessera/metrics/event.h"

#include <cmath>
#include <limits>
#include <set>

#include "tests/support/test.hpp"

using namespace tessera::metrics;

TEST_CASE("an event is one line of JSON with its fields in order") {
  const Event event{"x",
                    {{"text", std::string("a\"b\n\xff")},
                     {"flag", true},
                     {"count", int64_t{9007199254740993}},
                     {"ratio", 0.1},
                     {"infinite", std::numeric_limits<double>::infinity()},
                     {"unknown", std::monostate()},
                     {"config", JsonText{R"({"a":1})"}}}};
  CHECK(
      to_json(event) ==
      "{\"text\":\"a\\\"b\\n\xEF\xBF\xBD\",\"flag\":true,\"count\":9007199254740993,\"ratio\":0.1,"
      "\"infinite\":null,\"unknown\":null,\"config\":{\"a\":1}}");
}

TEST_CASE("CSV cells are quoted where RFC 4180 or a spreadsheet needs it") {
  CHECK(to_csv(std::string("plain")) == "plain");
  CHECK(to_csv(std::string("a,b")) == "\"a,b\"");
  CHECK(to_csv(std::string("say \"x\"")) == "\"say \"\"x\"\"\"");
  for (const char* formula : {"=1+1", "+1", "-cmd", "@sum"}) {
    CHECK(to_csv(std::string(formula)) == "\"'" + std::string(formula) + "\"");
  }
  CHECK(to_csv(-0.5) == "-0.5");  // numbers stay numbers
  CHECK(to_csv(int64_t{-3}) == "-3");
  CHECK(to_csv(std::nan("")).empty());
  CHECK(to_csv(std::monostate()).empty());
}

TEST_CASE("a step without GPU has null GPU fields and a rate from its own time") {
  StepRecord record;
  record.step = 3;
  record.step_time_s = 0.5;
  record.tokens = 100;
  const Event event = to_event(record);
  CHECK(event.number("tokens_per_second") == 200.0);
  REQUIRE(event.find("gpu_mem_allocated_bytes") != nullptr);
  CHECK(*event.find("gpu_mem_allocated_bytes") == Value());
  CHECK_FALSE(event.number("grad_norm").has_value());
}

TEST_CASE("experiment names follow the field's habit") {
  RunStartRecord run;
  run.strategy = "zero2";
  run.parameter_dtype = "fp16";
  run.device = "cuda:0";
  run.world_size = 4;
  run.per_device_train_batch_size = 8;
  run.max_seq_length = 512;
  CHECK(experiment_name(run) == "zs2_fp16_gpus4_bs8_sl512");
  run.tp = run.pp = 2;
  CHECK(experiment_name(run) == "zs2_fp16_gpus4_bs8_sl512_tp2_pp2");
  run.offload = "optimizer";
  run.pin_memory = true;
  CHECK(experiment_name(run) == "zs2_fp16_gpus4_bs8_sl512_tp2_pp2_off_pin");
}

TEST_CASE("whatever changes what a run costs changes its name") {
  RunStartRecord usual;
  usual.strategy = "fsdp";
  usual.parameter_dtype = "fp32";
  usual.device = "cpu";
  usual.pp = 2;
  usual.pipeline_schedule = "1f1b";
  usual.supervise = "answer";
  std::set<std::string> names{experiment_name(usual)};
  const auto other = [&](auto change) {
    RunStartRecord run = usual;
    change(run);
    INFO(experiment_name(run));
    CHECK(names.insert(experiment_name(run)).second);
  };
  other([](RunStartRecord& r) { r.strategy = "zero3"; });
  other([](RunStartRecord& r) { r.parameter_dtype = "bf16"; });
  other([](RunStartRecord& r) { r.device = "NVIDIA H200"; });
  other([](RunStartRecord& r) { r.world_size = 2; });
  other([](RunStartRecord& r) { r.per_device_train_batch_size = 2; });
  other([](RunStartRecord& r) { r.gradient_accumulation_steps = 2; });
  other([](RunStartRecord& r) { r.max_seq_length = 8; });
  other([](RunStartRecord& r) { r.tf32 = true; });
  other([](RunStartRecord& r) { r.shard_ranks = 2; });
  other([](RunStartRecord& r) { r.reshard_after_forward = false; });
  other([](RunStartRecord& r) { r.tp = 2; });
  other([](RunStartRecord& r) { r.sequence_parallel = true; });
  other([](RunStartRecord& r) { r.pp = 4; });
  other([](RunStartRecord& r) { r.pipeline_schedule = "gpipe"; });
  other([](RunStartRecord& r) { r.pipeline_schedule = "interleaved"; });
  other([](RunStartRecord& r) {
    r.pipeline_schedule = "interleaved";
    r.pipeline_chunks = 3;
  });
  other([](RunStartRecord& r) { r.pipeline_vocabulary = "shared"; });
  other([](RunStartRecord& r) { r.gradient_checkpointing = true; });
  other([](RunStartRecord& r) { r.keep_activations = true; });
  other([](RunStartRecord& r) { r.offload = "optimizer"; });
  other([](RunStartRecord& r) { r.offload = "optimizer+params"; });
  other([](RunStartRecord& r) { r.pin_memory = true; });
  other([](RunStartRecord& r) { r.packing = true; });
  other([](RunStartRecord& r) { r.padding_free = true; });
  other([](RunStartRecord& r) { r.group_by_length = true; });
  other([](RunStartRecord& r) { r.pad_to_max_length = true; });
  other([](RunStartRecord& r) { r.supervise = "all"; });
  other([](RunStartRecord& r) { r.gradient_dtype = "bf16"; });
  other([](RunStartRecord& r) { r.reduce_dtype = "bf16"; });
  other([](RunStartRecord& r) { r.fsdp_unit_numel = 1000; });
  other([](RunStartRecord& r) { r.pad_to_multiple_of = 8; });
  other([](RunStartRecord& r) { r.deterministic = true; });
}

TEST_CASE("an evaluation has the scores that were taken, and no others") {
  EvalRecord record;
  CHECK(to_event(record).find("eval_f1_macro") == nullptr);
  record.eval_f1_macro = 0.25;
  record.eval_f1_weighted = 0.5;
  const Event event = to_event(record);
  CHECK(event.number("eval_f1_macro") == 0.25);
  CHECK(event.number("eval_f1_weighted") == 0.5);
  CHECK(event.find("eval_f1") == nullptr);
}
