/* The interfaces of PHP and of the channel, for every file of the PHP worker. */
#ifndef KOMAINU_COMMON_H
#define KOMAINU_COMMON_H

#include <main/php.h>
#include <main/SAPI.h>
#include <main/php_ini.h>
#include <main/php_main.h>
#include <main/php_output.h>
#include <main/php_variables.h>

#include "komainu.h"
#include "komainu_life.h"

#endif
