# pipewright: the command line. Commands that need torch are left out of a build without it.
find_package(CLI11 REQUIRED)
file(GLOB COMMAND_SOURCES CONFIGURE_DEPENDS compiler/*_command.cc)
add_executable(pipewright compiler/main.cc compiler/program.cc ${COMMAND_SOURCES})
target_link_libraries(pipewright PRIVATE pipewright_plan CLI11::CLI11)
install(TARGETS pipewright)
