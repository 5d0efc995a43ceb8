#include "cli/run/shared_options.h"

#include <CLI/CLI.hpp>
#include <string>

#include "cli/numbers.h"
#include "formats/job.h"

namespace pipewright {

// CLI11 has checked the name.
static MatMul MatMulNamed(const std::string& name) {
  for (const auto& [known, choice] : MatMulNames())
    if (known == name) return choice;
  return MatMul::kLibTorch;
}

void AddPackage(CLI::App& app, RunOptions& run) {
  app.add_option("package", run.package, "folder that `pipewright compile` wrote")->required();
  app.add_option("--conf", run.conf,
                 "conf that assigns modules to ranks (default: PACKAGE/conf/mp_conf.json)");
  app.add_option("--weights", run.weights,
                 "weights to use instead of the package's (safetensors, shards, torch.save)");
  app.add_flag("--verify-files", run.verify_files,
               "compare the whole content of files that several ranks read, not only sizes and "
               "samples");
}

void AddOffload(CLI::App& app, RunOptions& run) {
  app.add_option("--device-map", run.device_map,
                 "device map from `pipewright place`: which weights stay in memory (0, 1, ..., "
                 "cpu), and which are read from disk when they are needed")
      ->excludes(app.get_option("--conf"));
  app.add_option("--offload-dir", run.offload_dir,
                 "not used: weights on disk are read from the package's own files");
  app.add_option("--offload-report", run.offload_report,
                 "JSON file for a report of the weights read from disk and kept in memory");
}

void AddThreads(CLI::App& app, RunOptions& run) {
  app.add_option("--threads", run.threads,
                 "threads per rank (default: OMP_NUM_THREADS, or the available cores; 1 if several "
                 "ranks are threads); outputs are bitwise identical only for the same number")
      ->check(InRange(1, 1024));
  run.matmul = MatMul::kAuto;
  app.add_option_function<std::string>(
         "--matmul", [&run](const std::string& name) { run.matmul = MatMulNamed(name); },
         "library for float32 matrix products: libtorch (as in training), onednn, or auto "
         "(onednn on AMD processors, where it is faster); results differ by rounding")
      ->check(CLI::IsMember({"auto", "libtorch", "onednn"}))
      ->default_str("auto");
}

void AddDevice(CLI::App& app, RunOptions& run) {
  app.add_option("--device", run.device,
                 "where ranks compute: cpu, auto (an accelerator for each rank if the host has "
                 "any), a type such as cuda, or one device such as cuda:0 (default: the conf's, "
                 "the job's, or cpu)");
  app.add_option_function<std::string>(
         "--links",
         [&run](const std::string& name) {
           run.links = name == "nccl"  ? DeviceLinks::kNccl
                       : name == "mpi" ? DeviceLinks::kMpi
                                       : DeviceLinks::kAuto;
         },
         "how values travel between devices: nccl, mpi (through host memory), or auto (nccl "
         "between CUDA devices)")
      ->check(CLI::IsMember({"auto", "nccl", "mpi"}))
      ->default_str("auto");
  app.add_flag("--share-devices", run.share_devices,
               "let several ranks of a host compute on one device");
}

void AddSet(CLI::App& app, RunOptions& run) {
  app.add_option("--set", run.set,
                 "override a value of the job, such as optimizer.lr=0.1 or data.shuffle=false "
                 "(repeatable)")
      ->allow_extra_args(false)
      ->type_name("KEY=VALUE");
}

void AddReport(CLI::App& app, RunOptions& run, bool of_job) {
  app.add_option("--report", run.report,
                 std::string("HTML page about the run, written at its end") +
                     (of_job ? " (overrides the job)" : ""));
}

}  // namespace pipewright
