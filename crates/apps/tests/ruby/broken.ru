# frozen_string_literal: true

raise "the database is not there"
