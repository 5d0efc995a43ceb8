#include "base/process/messages.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "base/process/terminal.h"

namespace pipewright {

static constexpr char kColor[] = "PIPEWRIGHT_COLOR";  // "always", "never"; else kAuto
static Color g_color = Color::kAuto;
static std::string g_prefix;

static bool IsColorTerminal(int stream) {
  const char* none = std::getenv("NO_COLOR");
  const char* kind = std::getenv("TERM");
  return isatty(stream) && !(none && *none) && kind && *kind && std::string(kind) != "dumb";
}

static bool ShowsColors(int stream) {
  if (g_color != Color::kAuto) return g_color == Color::kAlways;
  const char* set = std::getenv(kColor);
  const std::string color = set ? set : "";
  return color == "always" || (color != "never" && IsColorTerminal(stream));
}

void SetColor(Color color) { g_color = color; }

void OfferColors() { setenv(kColor, ShowsColors(STDERR_FILENO) ? "always" : "never", 1); }

const char* ToText(Severity kind) {
  return kind == Severity::kError ? "error" : kind == Severity::kWarning ? "warning" : "note";
}

std::string Paint(const std::string& text, Severity kind, int stream) {
  if (!ShowsColors(stream)) return text;
  const char* code = kind == Severity::kError ? "31" : kind == Severity::kWarning ? "33" : "36";
  return "\033[1;" + std::string(code) + "m" + text + "\033[0m";
}

void SetMessagePrefix(const std::string& prefix) { g_prefix = prefix; }

static void Print(Severity kind, const std::string& text) {
  std::fprintf(stderr, "%s%s%s: %s\n", BeforeMessage(), g_prefix.c_str(),
               Paint(ToText(kind), kind, STDERR_FILENO).c_str(), text.c_str());
}

void PrintNote(const std::string& text) { Print(Severity::kNote, text); }
void PrintWarning(const std::string& text) { Print(Severity::kWarning, text); }

}  // namespace pipewright
