// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Umbrella header for the common case: a model of torch::nn modules, strategies, the job, the
/// training loop, data and checkpoints. Language models, generation, metrics and plans have their
/// own headers.
#include "tessera/backends/copy_weights.h"
#include "tessera/backends/data_parallel/ddp.h"
#include "tessera/backends/fsdp/fsdp.h"
#include "tessera/backends/offload/cpu_offload.h"
#include "tessera/backends/parallel_config.h"
#include "tessera/backends/pipeline/pipeline.h"
#include "tessera/backends/tensor/tensor_parallel.h"
#include "tessera/backends/zero/zero.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/checkpoint_writer.h"
#include "tessera/comm/device_mesh.h"
#include "tessera/comm/launch.h"
#include "tessera/core/error.h"
#include "tessera/data/data_loader.h"
#include "tessera/model/adapters.h"
#include "tessera/model/all_gather.h"
#include "tessera/model/batch_norm.h"
#include "tessera/model/callable.h"
#include "tessera/model/parameter_groups.h"
#include "tessera/optim/adagrad.h"
#include "tessera/optim/adamw.h"
#include "tessera/optim/elementwise.h"
#include "tessera/optim/lion.h"
#include "tessera/optim/matrix_optimizer.h"
#include "tessera/optim/muon.h"
#include "tessera/optim/sgd.h"
#include "tessera/train/parallel_module.h"
#include "tessera/train/trainer.h"
