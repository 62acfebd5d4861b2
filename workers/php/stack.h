/* The stack of a script that takes too long. */
#ifndef KOMAINU_STACK_H
#define KOMAINU_STACK_H

#include "common.h"

/* Installs the handler of KOMAINU_SIGNAL_WHERE: it writes the script's stack to standard error and ends the process. */
void install_stack_handler(void);

#endif
