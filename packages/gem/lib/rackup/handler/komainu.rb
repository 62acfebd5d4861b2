# frozen_string_literal: true

require "rackup/handler"
require "komainu"

Rackup::Handler.register(:komainu, Komainu::Handler)
