#include "cli/run/with_report.h"

#include "runtime/exec/phase.h"

namespace pipewright {

void WithReport(const RunOptions& run, Transport& transport, std::FILE* output,
                const std::function<void()>& work,
                const std::function<void(const Job&, PageInput&)>& add_files) {
  Job job;
  Phase(transport, "reading", [&] {
    job = ReadJobOf(run);
    if (!job.report.empty() && transport.rank() == 0)
      CheckPageOutput(job.report, {run.job, run.conf, run.weights, run.trace, job.plan, job.costs},
                      false);
  });
  work();
  // Collective, so all ranks call it, even if this one writes no page.
  Phase(transport, "writing the report", [&] {
    if (job.report.empty() || transport.rank() != 0) return;
    PageInput input;
    input.view = ViewPackage(run.package, run.conf, "");
    add_files(job, input);
    input.job = job;
    std::fputs(WritePage(job.report, input).c_str(), output);
  });
}

}  // namespace pipewright
